//! What the example is asked to do.

pub(crate) const USAGE: &str = "\
Usage: fulfillment [--redis URL]
       fulfillment serve [--listen ADDRESS] [--redis URL] [--unprotected]

The first form starts the shop's server, delivers a notification to it five times, under new ids and
under its own, without the layer and with it, and prints what was charged. The second keeps one server up until ctrl-c.

  --redis URL        keep records in Redis, such as redis://127.0.0.1:6379; the default is memory.
                     The first form then starts two servers that share it.
  --listen ADDRESS   where to listen; the default is 127.0.0.1:8080
  --unprotected      leave the layer out
  --help             print this";

pub(crate) enum Command {
    Story { redis: Option<String> },
    Serve(Serve),
    Help,
}

pub(crate) struct Serve {
    pub(crate) listen: String,
    pub(crate) redis: Option<String>,
    pub(crate) protected: bool,
}

/// Reads the arguments that follow the name of the program.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut arguments = arguments.peekable();
    let serves = arguments.next_if(|first| first == "serve").is_some();
    let mut serve = Serve { listen: "127.0.0.1:8080".to_owned(), redis: None, protected: true };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--redis" => serve.redis = Some(value()?),
            "--listen" if serves => serve.listen = value()?,
            "--unprotected" if serves => serve.protected = false,
            "--listen" | "--unprotected" => {
                return Err(format!("{argument} belongs to `fulfillment serve`"));
            }
            _ => return Err(format!("`{argument}` is no argument of this example")),
        }
    }
    Ok(if serves { Command::Serve(serve) } else { Command::Story { redis: serve.redis } })
}
