//! Reads rules as a program does: as a field of its own configuration, in TOML.

use serde::Deserialize;
use tower_idempotency::{Policy, Registry, Rules, RulesConfig};

#[derive(Deserialize)]
pub(crate) struct Config {
    pub(crate) rules: RulesConfig,
}

/// The rules of this configuration, or what is wrong with it.
pub(crate) fn rules_with(registry: &Registry, toml: &str) -> Result<Rules, String> {
    let config: Config = toml::from_str(toml).map_err(|error| error.message().to_owned())?;
    registry.rules(config.rules).map_err(|error| error.to_string())
}

/// The same where nothing is registered, read directly.
pub(crate) fn rules(toml: &str) -> Result<Rules, String> {
    #[derive(Deserialize)]
    struct Direct {
        rules: Rules,
    }
    let direct = toml::from_str::<Direct>(toml).map(|direct| direct.rules);
    let direct = direct.map_err(|error| error.message().to_owned());
    let looked_up = rules_with(&Registry::new(), toml);
    // Both ways say the same.
    assert_eq!(format!("{direct:?}"), format!("{looked_up:?}"));
    direct
}

/// A rule `r` with these lines, and `name` set.
pub(crate) fn one(lines: &str) -> String {
    format!("[[rules]]\nname = \"r\"\n{lines}\n")
}

/// The policy of the only rule.
pub(crate) fn policy(rules: &Rules) -> &Policy {
    let mut all = rules.iter();
    let rule = all.next().unwrap();
    assert!(all.next().is_none());
    rule.policy()
}
