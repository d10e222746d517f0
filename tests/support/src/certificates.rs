//! An authority, and certificates that it has signed, made by `openssl`.

use std::{fs, path::PathBuf, process::Command};

use crate::Directory;

/// An authority of one test, with a certificate for `localhost` and 127.0.0.1 and one for a client.
#[derive(Debug)]
pub struct Certificates(Directory);

impl Certificates {
    /// Makes them.
    ///
    /// # Panics
    ///
    /// When there is no `openssl`.
    #[expect(clippy::new_without_default, reason = "it makes something on the disk")]
    pub fn new() -> Self {
        let certificates = Self(Directory::new());
        certificates.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=an authority of a test",
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
        ]);
        certificates.sign("server", "subjectAltName=DNS:localhost,IP:127.0.0.1");
        certificates.sign("client", "extendedKeyUsage=clientAuth");
        certificates
    }

    fn sign(&self, name: &str, extension: &str) {
        let [key, request, chain, extensions] =
            ["key", "csr", "pem", "ext"].map(|end| format!("{name}.{end}"));
        fs::write(self.0.path().join(&extensions), extension).expect("the directory is ours");
        let subject = format!("/CN={name}");
        self.openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            &subject,
            "-keyout",
            &key,
            "-out",
            &request,
        ]);
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            &extensions,
            "-out",
            &chain,
        ]);
    }

    fn openssl(&self, arguments: &[&str]) {
        let made = Command::new("openssl").args(arguments).current_dir(self.0.path()).output();
        let made = made.expect("openssl is on PATH: apt-get install openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Where a file is: `ca.pem`, `server.pem`, `server.key`, `client.pem`, `client.key`.
    pub fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// What is in it.
    ///
    /// # Panics
    ///
    /// When there is none of that name.
    pub fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.path(file)).expect("it was made")
    }
}
