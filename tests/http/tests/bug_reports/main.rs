//! Faults of other projects of this kind, as their users reported them, shown absent in this one.
//!
//! The tests of report B07 are called `b07_..`; in brackets how many there are. How each is to be
//! tested: H over HTTP/1.1, H2 over HTTP/2, M on two or more instances over one real Redis, U in
//! process, R with faults of a real Redis, P with a proxy before it. Those of R and P that show at
//! the store alone are in `tests/store_redis`.
//!
//! | report | to be tested | module | and |
//! |---|---|---|---|
//! | B01 | H, M | `claiming` (2) | |
//! | B02 | H, M | `claiming` | |
//! | B03 | H, M, R | `claiming` | claims straight on two connections: `store_redis` |
//! | B04 | P, R | | one store, one script: `store_redis::bug_reports::b04` |
//! | B05 | H | `claiming` (2), `store_faults` | |
//! | B06 | H, M | `claiming` | |
//! | B07 | H, M | `claiming` (2) | |
//! | B08 | H | `claiming` | |
//! | B10 | H, R | `lifecycle` | DESIGN differs: abandoned, refused, run again only with `rerun_abandoned`. A process killed with -9: `tests/faults` |
//! | B11 | H, R | `lifecycle` | DESIGN differs likewise |
//! | B12 | R, U | `lifecycle` | DESIGN differs: the lease is in the record, which outlives it |
//! | B13 | R, U | `lifecycle` | no lease left: `store_redis` |
//! | B14 | H | `lifecycle` | |
//! | B16 | H | `lifecycle` | |
//! | B17 | H, R | `lifecycle` (2) | |
//! | B18 | H | `lifecycle` | |
//! | B19 | H, R | `lifecycle` | |
//! | B20 | R, M | `lifecycle` | DESIGN differs: unreadable and refused, not held |
//! | B23 | P, M | `lifecycle` | |
//! | B24 | H, R | `lifecycle` | expiry in Redis: `store_redis` |
//! | B25 | H, M | `lifecycle` | |
//! | B26 | R | `lifecycle` | R, cheap to show here |
//! | B27 | R | `lifecycle` (2) | R, cheap to show here |
//! | B28 | R | `lifecycle` | R; over HTTP here, at the store: `store_redis` |
//! | B29 | H | `recorded` | DESIGN differs: an API keeps a 500; a sender of notifications gets its run |
//! | B30 | H | `recorded` | DESIGN differs for 408: neither stored nor run again |
//! | B31 | H | `recorded` | |
//! | B32 | H | `recorded` | |
//! | B33 | H | `recorded` | |
//! | B34 | H | `recorded` | |
//! | B37 | H | `recorded` | |
//! | B38 | H | `recorded` | |
//! | B39 | R, M | `recorded` | |
//! | B40 | H, M | `recorded` | |
//! | B41 | H | `recorded` | |
//! | B42 | H | `keys` | |
//! | B43 | H | `keys` | |
//! | B44 | H | `keys` | |
//! | B45 | H | `keys` | |
//! | B46 | H, R | `keys` | |
//! | B47 | H | `keys` | |
//! | B48 | H | `keys` | where JSON is none: `tests/identity` |
//! | B49 | H | `keys` | |
//! | B50 | H | `keys` | |
//! | B51 | H | `keys` | also `tests/identity` |
//! | B52 | H | `keys` | also `tests/identity` |
//! | B53 | H, M | `keys` | one rule around both routes; `.business_key(..)` does not exist yet |
//! | B54 | H | `keys` | a source of the user's own; `.business_key(..)` does not exist yet |
//! | B55 | H | `keys` | a source of the user's own, or the scope |
//! | B56 | H | `keys` | |
//! | B57 | H | `keys` | raw bytes; a canonical form (`.compare`) does not exist yet |
//! | B58 | H, M | `keys` | the in-process `recent` does not exist yet |
//! | B59 | H | `keys` | a list of parameters to ignore does not exist yet |
//! | B60 | H | `keys` | narrowing to fields (`.compare`) does not exist yet |
//! | B61 | H | `replay` | |
//! | B62 | H | `replay` | replays are counted by the extension `Handled`; feature `metrics` does not exist yet |
//! | B63 | H | `replay` | |
//! | B65 | H | `replay` | |
//! | B66 | H | `replay` | |
//! | B67 | H | `replay` | |
//! | B68 | H | `replay` | |
//! | B69 | H, H2 | `replay` | |
//! | B70 | H | `replay` | the real compression: `tests/stack` |
//! | B71 | H | `replay` | the real compression: `tests/stack` |
//! | B72 | H | `replay` | |
//! | B73 | H | `replay` | |
//! | B74 | H | `replay` | |
//! | B75 | H | `replay` | |
//! | B76 | H | `replay` | |
//! | B77 | U, H | `replay` | |
//! | B78 | H | `framing` | |
//! | B79 | H | `framing` | |
//! | B80 | H | `framing` | the real decompression: `tests/stack` |
//! | B83 | H | `framing` | |
//! | B84 | H | `framing` | |
//! | B85 | H | `framing` (2) | |
//! | B86 | H2 | `framing` | over HTTP/1.1 too |
//! | B87 | H | `framing` | |
//! | B88 | H | `framing` | |
//! | B89 | U | `framing` (2) | |
//! | B90 | H, M | `framing` | |
//! | B91 | H, H2 | `cancellation` (2) | |
//! | B92 | H, R | `cancellation` (2) | SIGTERM to a real process: `tests/examples.rs` |
//! | B93 | P, R | | P, R: `store_redis::bug_reports::b93` |
//! | B94 | U, R | `leases` | in Redis: `store_redis` |
//! | B95 | M | `leases` | DESIGN differs: no process has a clock that is compared; shown in the sources |
//! | B96 | H, M | `leases` (2) | |
//! | B97 | H, M | `leases` | |
//! | B98 | R, M | `leases` | R, shows over HTTP |
//! | B99 | R | `leases` | R, shows over HTTP; a check of the eviction policy at start does not exist yet |
//! | B100 | R | | R: `store_redis::bug_reports::b100` |
//! | B101 | H | `leases` | |
//! | B102 | R | `leases` | R, shows over HTTP; senders' presets do not exist yet |
//! | B103 | R | | R: `store_redis::bug_reports::b103` |
//! | B104 | R | `store_faults` (2) | R, shows over HTTP |
//! | B105 | P, H | `store_faults` | |
//! | B109 | P | | P: `store_redis::bug_reports::b109` |
//! | B110 | P | `store_faults` | P, shows over HTTP |
//! | B111 | R | `store_faults` | R, shows over HTTP |
//! | B112 | R | `store_faults` | R, shows over HTTP |
//! | B113 | R | `store_faults` | R, shows over HTTP |
//! | B114 | R | | R: `store_redis::bug_reports::b114` |
//! | B115 | R | | R: `store_redis::bug_reports::b115` |
//! | B116 | R | | R: feature `redis-cluster` does not exist yet |
//! | B117 | R, U | `store_faults` | R, shows over HTTP; errors among replies: `store_redis` |
//! | B118 | P | `store_faults` | P, shows over HTTP |
//! | B119 | R | `store_faults` | R, shows over HTTP |
//! | B120 | H | `contention` | |
//! | B121 | H | `contention` | |
//! | B122 | H | `contention` (2) | |
//! | B123 | H | `contention` | |
//! | B124 | H, M | `consumers` (2) | |
//! | B125 | H | `consumers` | |
//! | B126 | H | `consumers` | |

mod cancellation;
mod claiming;
mod consumers;
mod contention;
mod framing;
mod keys;
mod leases;
mod lifecycle;
mod recorded;
mod replay;
mod store_faults;
mod support;
