//! Reads an expression as Prometheus does, and finds in it what can never be true of the series there are:
//! a name, a label or an outcome that nothing has, a counter taken as it stands, sides that never meet.

use std::collections::BTreeSet;

use promql_parser::{
    label::{MatchOp, Matcher},
    parser::{
        AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorSelector, parse, token::T_GROUP,
    },
};

use crate::emitted::{Emitted, Kind, Metric};

/// What Prometheus puts on all that it scrapes.
const SCRAPED: [&str; 2] = ["instance", "job"];
/// The functions that make something of how a counter grows.
const GROWTH: [&str; 3] = ["increase", "irate", "rate"];

/// What is known of an expression.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Read {
    /// The metrics that it speaks of.
    pub(crate) metrics: BTreeSet<String>,
    /// The labels of what it gives.
    pub(crate) labels: BTreeSet<String>,
}

/// Reads an expression; an error says what is wrong with it.
pub(crate) fn read(text: &str, emitted: &Emitted) -> Result<Read, String> {
    // What Grafana writes in its place is a duration.
    let text = text.replace("$__rate_interval", "5m");
    let expression = parse(&text)?;
    let mut reader = Reader { emitted, metrics: BTreeSet::new() };
    let labels = reader.expression(&expression)?;
    let labels = labels.ok_or_else(|| "it gives a number, and no series".to_owned())?;
    Ok(Read { metrics: reader.metrics, labels })
}

/// Whether the crate makes the series that is written so, with each of its labels and no other.
pub(crate) fn check_series(text: &str, emitted: &Emitted) -> Result<(), String> {
    let Expr::VectorSelector(selector) = parse(text)? else { return Err("no series".to_owned()) };
    let mut reader = Reader { emitted, metrics: BTreeSet::new() };
    let (_, mut labels) = reader.selector(&selector)?;
    labels.retain(|label| !SCRAPED.contains(&label.as_str()));
    let written = selector.matchers.matchers.iter().map(|matcher| matcher.name.clone());
    let written: BTreeSet<_> = written.filter(|label| !SCRAPED.contains(&label.as_str())).collect();
    match labels == written {
        true => Ok(()),
        false => Err(format!("its labels are {labels:?}")),
    }
}

struct Reader<'a> {
    emitted: &'a Emitted,
    metrics: BTreeSet<String>,
}

/// The labels of the series that something gives; `None` where it gives a number.
type Given = Result<Option<BTreeSet<String>>, String>;

impl Reader<'_> {
    fn expression(&mut self, expression: &Expr) -> Given {
        match expression {
            Expr::Aggregate(aggregate) => self.aggregate(aggregate),
            Expr::Binary(binary) => self.binary(binary),
            Expr::Call(call) => self.call(call),
            Expr::Unary(unary) => self.expression(&unary.expr),
            Expr::Paren(paren) => self.expression(&paren.expr),
            Expr::Subquery(subquery) => self.expression(&subquery.expr),
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Ok(None),
            Expr::VectorSelector(selector) => {
                let (kind, labels) = self.selector(selector)?;
                match kind {
                    Kind::Gauge => Ok(Some(labels)),
                    _ => Err(format!("{selector} only grows; ask how much, with increase or rate")),
                }
            }
            Expr::MatrixSelector(range) => {
                let (kind, labels) = self.selector(&range.vs)?;
                match kind {
                    Kind::Gauge => Ok(Some(labels)),
                    _ => Err(format!("{range} only grows; ask how much, with increase or rate")),
                }
            }
            Expr::Extension(_) => Err("an extension of the parser's".to_owned()),
        }
    }

    /// The kind and the labels of the series with this name.
    fn selector(&mut self, selector: &VectorSelector) -> Result<(Kind, BTreeSet<String>), String> {
        let name = selector.name.as_deref().ok_or_else(|| format!("{selector} has no name"))?;
        let (metric, base, part) = self.metric(name)?;
        if !selector.matchers.or_matchers.is_empty() {
            return Err(format!("{selector}: Prometheus knows no `or` in braces"));
        }
        for matcher in &selector.matchers.matchers {
            check(matcher, metric).map_err(|wrong| format!("{selector}: {wrong}"))?;
        }
        let mut labels: BTreeSet<_> = metric.labels.keys().cloned().collect();
        labels.extend(SCRAPED.map(str::to_owned));
        if part == Some("_bucket") {
            labels.insert("le".to_owned());
        }
        let kind = metric.kind;
        self.metrics.insert(base);
        Ok((kind, labels))
    }

    /// The metric that a series of this name is of, its own name, and the part of it that the series is: a
    /// histogram has three series.
    fn metric(&self, name: &str) -> Result<(&Metric, String, Option<&'static str>), String> {
        let emitted = self.emitted;
        for part in ["_bucket", "_sum", "_count"] {
            if let Some(base) = name.strip_suffix(part)
                && let Some(metric) = emitted.get(base)
                && metric.kind == Kind::Histogram
            {
                return Ok((metric, base.to_owned(), Some(part)));
            }
        }
        match emitted.get(name) {
            None => Err(format!("there is no metric {name}")),
            Some(metric) if metric.kind == Kind::Histogram => {
                Err(format!("{name} alone is no series, for it is a histogram"))
            }
            Some(metric) => Ok((metric, name.to_owned(), None)),
        }
    }

    fn aggregate(&mut self, aggregate: &AggregateExpr) -> Given {
        let inner = match &*aggregate.expr {
            // Which series there are, whatever their values.
            Expr::VectorSelector(selector) if aggregate.op.id() == T_GROUP => {
                Some(self.selector(selector)?.1)
            }
            inner => self.expression(inner)?,
        };
        let inner = inner.ok_or_else(|| format!("{} of a number", aggregate.op))?;
        let named = aggregate.modifier.as_ref().map(LabelModifier::labels);
        let named = named.map(|named| named.labels.clone()).unwrap_or_default();
        if let Some(unknown) = named.iter().find(|label| !inner.contains(*label)) {
            return Err(format!("by {unknown}, which {} has not", aggregate.expr.prettify()));
        }
        let named = named.into_iter().collect();
        Ok(Some(match &aggregate.modifier {
            None => BTreeSet::new(),
            Some(LabelModifier::Include(_)) => named,
            Some(LabelModifier::Exclude(_)) => inner.difference(&named).cloned().collect(),
        }))
    }

    fn call(&mut self, call: &Call) -> Given {
        let name = call.func.name;
        let mut given = None;
        for argument in &call.args.args {
            let labels = match &**argument {
                Expr::MatrixSelector(range) if GROWTH.contains(&name) => {
                    let (kind, labels) = self.selector(&range.vs)?;
                    if kind == Kind::Gauge {
                        return Err(format!("{name} of {range}, which goes up and down"));
                    }
                    Some(labels)
                }
                argument => self.expression(argument)?,
            };
            given = given.or(labels);
        }
        if name == "histogram_quantile" && !given.as_mut().is_some_and(|given| given.remove("le")) {
            return Err(format!("{name} of what has no label le"));
        }
        Ok(given)
    }

    fn binary(&mut self, binary: &BinaryExpr) -> Given {
        if binary.modifier.as_ref().is_some_and(|modifier| modifier.matching.is_some()) {
            return Err("on and ignoring are not judged here".to_owned());
        }
        match (self.expression(&binary.lhs)?, self.expression(&binary.rhs)?) {
            (Some(left), Some(right)) if left != right => Err(format!(
                "the sides of {} have the labels {left:?} and {right:?}, and never meet",
                binary.op
            )),
            (left, right) => Ok(left.or(right)),
        }
    }
}

/// Whether a metric has this label, and what the matcher asks for is one of its values.
fn check(matcher: &Matcher, metric: &Metric) -> Result<(), String> {
    let label = matcher.name.as_str();
    if SCRAPED.contains(&label) {
        return Ok(());
    }
    let values = metric.labels.get(label).ok_or_else(|| format!("there is no label {label}"))?;
    // The names of rules are the program's own.
    if label == "rule" {
        return Ok(());
    }
    let among: Vec<_> = match matcher.op {
        MatchOp::Equal | MatchOp::NotEqual => vec![matcher.value.as_str()],
        MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.split('|').collect(),
    };
    match among.iter().find(|one| !values.contains(**one)) {
        None => Ok(()),
        Some(unknown) => Err(format!("{label} is never {unknown:?}")),
    }
}

#[test]
fn what_can_never_be_true_is_found_in_an_expression() {
    let emitted = crate::emitted::emitted();
    let right = [
        ("sum(increase(idempotency_fenced_off_total[5m])) > 0", &[][..]),
        ("idempotency_waiting", &["instance", "job", "rule"]),
        ("max_over_time(idempotency_waiting[5m])", &["instance", "job", "rule"]),
        ("sum by (rule) (rate(idempotency_claim_seconds_count[5m]))", &["rule"]),
        ("group by (rule) (idempotency_requests_total offset 1d)", &["rule"]),
        ("sum without (job) (idempotency_in_flight{rule=~\"$rule\"})", &["instance", "rule"]),
        (
            "histogram_quantile(0.9, sum by (le, rule) (rate(idempotency_claim_seconds_bucket[1m])))",
            &["rule"],
        ),
        (
            "increase(idempotency_requests_total{handled=~\"executed|mismatch\"}[5m])",
            &["handled", "instance", "job", "rule"],
        ),
        (
            "(sum(idempotency_waiting) + sum(idempotency_in_flight)) * 2 > 7 or sum(idempotency_waiting)",
            &[],
        ),
    ];
    for (text, labels) in right {
        let read = read(text, &emitted).unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
        assert_eq!(read.labels.iter().collect::<Vec<_>>(), labels, "{text}");
        assert!(!read.metrics.is_empty());
    }
    for (text, message) in [
        (
            "sum(increase(idempotency_fenced_of_total[5m])) > 0",
            "no metric idempotency_fenced_of_total",
        ),
        ("sum(increase(idempotency_fenced_off_total[5m]) > 0", "unclosed left parenthesis"),
        ("sum(increase(idempotency_fenced_off_total))", "expected type matrix"),
        (
            "sum(increase(idempotency_fenced_off_total[5 min]))",
            "unexpected character inside brackets",
        ),
        ("incraese(idempotency_fenced_off_total[5m])", "unknown function"),
        ("sum(idempotency_fenced_off_total) > 0", "only grows"),
        ("max_over_time(idempotency_fenced_off_total[5m])", "only grows"),
        ("rate(idempotency_waiting[5m])", "goes up and down"),
        ("rate(idempotency_claim_seconds[5m])", "it is a histogram"),
        ("rate(idempotency_waiting_count[5m])", "no metric idempotency_waiting_count"),
        ("sum by (handled) (rate(idempotency_fenced_off_total[5m]))", "by handled, which"),
        ("rate(idempotency_requests_total{would=\"replayed\"}[5m])", "there is no label would"),
        ("rate(idempotency_requests_total{handled=\"replay\"}[5m])", "handled is never \"replay\""),
        (
            "rate(idempotency_requests_total{handled!~\"replayed|mismatched\"}[5m])",
            "never \"mismatched\"",
        ),
        ("{rule=\"a\"}", "has no name"),
        (
            "histogram_quantile(0.9, sum by (rule) (rate(idempotency_claim_seconds_bucket[1m])))",
            "no label le",
        ),
        ("sum by (rule) (idempotency_waiting) / sum(idempotency_in_flight)", "never meet"),
        ("7 * 6", "gives a number"),
    ] {
        let wrong = read(text, &emitted).expect_err(text);
        assert!(wrong.contains(message), "{text}: {wrong}");
    }
}
