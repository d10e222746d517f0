//! What an operator sees is what there is: the alert rules, the dashboard and their documents are held to
//! the series that a layer makes.

mod alerts;
mod dashboard;
mod documents;
mod emitted;
mod promql;
mod tried;
