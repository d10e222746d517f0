//! The shop's servers as processes of their own: this example, started again with `serve`.

use std::{net::SocketAddr, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{Error, arguments::Serve};

/// Server processes; they are killed when this is dropped.
pub(crate) struct Servers {
    children: Vec<Child>,
    addresses: Vec<SocketAddr>,
}

impl Servers {
    /// Starts so many and waits until they listen.
    pub(crate) async fn start(count: usize, serve: &Serve) -> Result<Self, Error> {
        let mut servers = Self { children: Vec::new(), addresses: Vec::new() };
        for _ in 0..count {
            let mut child = command(serve)?.spawn()?;
            servers.addresses.push(address(&mut child).await?);
            servers.children.push(child);
        }
        Ok(servers)
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Kills them and waits until they are gone.
    pub(crate) async fn stop(mut self) -> Result<(), Error> {
        for child in &mut self.children {
            child.kill().await?;
        }
        Ok(())
    }
}

fn command(serve: &Serve) -> Result<Command, Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve", "--listen", &serve.listen]);
    if let Some(url) = &serve.redis {
        command.args(["--redis", url]);
    }
    if !serve.protected {
        command.arg("--unprotected");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    Ok(command)
}

/// A server says where it listens once it does.
async fn address(child: &mut Child) -> Result<SocketAddr, Error> {
    // Borrowed, so that what it says later does not meet a closed pipe.
    let output = child.stdout.as_mut().ok_or("the server's output is not piped")?;
    let line = BufReader::new(output).lines().next_line().await?;
    let line = line.ok_or("the server ended before it listened")?;
    let address = line.strip_prefix("listening on http://");
    Ok(address.ok_or_else(|| format!("the server said {line:?}"))?.parse()?)
}
