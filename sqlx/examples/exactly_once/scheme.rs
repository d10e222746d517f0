//! The schemes that are compared.

/// A way to charge an order once. Each has a route of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Nothing,
    Token,
    Table,
    States,
    TableAndStates,
    Outside,
}

impl Scheme {
    pub(crate) const ALL: [Self; 6] = [
        Self::Nothing,
        Self::Token,
        Self::Table,
        Self::States,
        Self::TableAndStates,
        Self::Outside,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Token => "token",
            Self::Table => "table",
            Self::States => "states",
            Self::TableAndStates => "table+states",
            Self::Outside => "outside",
        }
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Nothing => "/nothing",
            Self::Token => "/token",
            Self::Table => "/table",
            Self::States => "/states",
            Self::TableAndStates => "/table-and-states",
            Self::Outside => "/outside",
        }
    }

    /// What the figures say of it.
    pub(crate) fn verdict(self) -> &'static str {
        match self {
            Self::Nothing => "charges as often as it is told to.",
            Self::Token => {
                "holds for callers that ask for a token and keep it; a gateway never asks, a new\n\
                 \x20             token is a new charge, and after a crash nobody knows."
            }
            Self::Table => {
                "holds whatever Redis forgets; another id of the same order is another row."
            }
            Self::States => {
                "keeps the money right; whoever comes again hears `already_done`, and a gateway\n\
                 \x20             that was not told `success` is never told."
            }
            Self::TableAndStates => {
                "holds: the layer and its ledger know the order, the state guards it."
            }
            Self::Outside => {
                "holds: charged by somebody else, between two commits, with a key that is the\n\
                 \x20             same on every attempt."
            }
        }
    }
}
