//! What the layer costs: the same app bare, under a layer that only changes the body type, under a
//! hand-written minimum, and under the layer, with the same requests.

pub mod affinity;
pub mod app;
pub mod body_type;
pub mod cell;
pub mod instructions;
pub mod machine;
pub mod measure;
pub mod minimum;
pub mod mux;
pub mod order;
pub mod redis_info;
pub mod report;
pub mod served;
pub mod spread;
