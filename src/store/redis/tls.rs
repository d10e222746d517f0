//! TLS with an authority and a certificate of one's own, and a provider of cryptography that is there.

#[cfg(feature = "redis-tls")]
pub use with::RedisTls;
#[cfg(feature = "redis-tls")]
pub(super) use with::Tls;

/// There is none.
#[cfg(not(feature = "redis-tls"))]
#[derive(Clone, Debug)]
pub(super) enum Tls {}

#[cfg(feature = "redis-tls")]
mod with {
    use std::{fmt, io, sync::Arc};

    use tokio::net::TcpStream;
    use tokio_rustls::{
        TlsConnector,
        client::TlsStream,
        rustls::{
            ClientConfig, RootCertStore,
            crypto::ring,
            pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        },
    };

    use crate::store::{StoreError, StoreErrorKind};

    /// Whom a TLS connection trusts, and who it says it is. What is not set is the usual: the authorities
    /// that the system trusts, and no certificate of one's own.
    ///
    /// The cryptography is that of `ring`, whatever else the program uses: no provider has to be
    /// installed for the process.
    ///
    /// # Example: an authority of one's own
    ///
    /// ```no_run
    /// use tower_idempotency::{
    ///     RedisStore,
    ///     store::{RedisServers, RedisTls},
    /// };
    ///
    /// # fn store() -> Result<RedisStore, Box<dyn std::error::Error>> {
    /// let tls = RedisTls::authority(&std::fs::read("ca.pem")?)?
    ///     .client(&std::fs::read("shop.pem")?, &std::fs::read("shop.key")?)?;
    /// let servers = RedisServers::url("rediss://redis.internal:6380")?.tls(tls);
    /// Ok(RedisStore::of(servers)?)
    /// # }
    /// ```
    #[derive(Clone, Default)]
    pub struct RedisTls {
        /// Empty: those of the system.
        authorities: Vec<CertificateDer<'static>>,
        client: Option<(Vec<CertificateDer<'static>>, Arc<PrivateKeyDer<'static>>)>,
    }

    impl RedisTls {
        /// Trusts these authorities (PEM, one or more) and no others.
        ///
        /// # Errors
        ///
        /// When there is none among the bytes.
        pub fn authority(pem: &[u8]) -> Result<Self, StoreError> {
            Ok(Self { authorities: certificates(pem)?, client: None })
        }

        /// Shows this certificate (PEM, the server's own first, then those that lead to its authority),
        /// and proves it by this key (PEM).
        ///
        /// # Errors
        ///
        /// When one of them is none.
        pub fn client(mut self, chain: &[u8], key: &[u8]) -> Result<Self, StoreError> {
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| wrong("the private key of the client is no PEM of one"))?;
            self.client = Some((certificates(chain)?, Arc::new(key)));
            Ok(self)
        }

        pub(in crate::store::redis) fn client_config(&self) -> Result<ClientConfig, StoreError> {
            let mut roots = RootCertStore::empty();
            if self.authorities.is_empty() {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(wrong(
                        "the system has no authorities to trust: install ca-certificates, or name \
                         one with RedisTls::authority",
                    ));
                }
            }
            for authority in &self.authorities {
                let added = roots.add(authority.clone());
                added.map_err(|error| wrong(&format!("this is no authority: {error}")))?;
            }
            // The process may have another provider, two of them, or none.
            let provider = Arc::new(ring::default_provider());
            let builder = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| wrong(&error.to_string()))?
                .with_root_certificates(roots);
            match &self.client {
                None => Ok(builder.with_no_client_auth()),
                Some((chain, key)) => builder
                    .with_client_auth_cert(chain.clone(), key.clone_key())
                    .map_err(|error| wrong(&format!("the client's certificate is wrong: {error}"))),
            }
        }

        pub(in crate::store::redis) fn connector(&self) -> Result<Tls, StoreError> {
            Ok(Tls(TlsConnector::from(Arc::new(self.client_config()?))))
        }
    }

    impl fmt::Debug for RedisTls {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("RedisTls")
                .field("authorities", &self.authorities.len())
                .field("client", &self.client.is_some())
                .finish()
        }
    }

    fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, StoreError> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match read {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            _ => Err(wrong("there is no certificate in what should be a PEM of one or more")),
        }
    }

    fn wrong(why: &str) -> StoreError {
        StoreError::new(StoreErrorKind::Refused, why)
    }

    /// What makes a TCP connection one of TLS.
    #[derive(Clone)]
    pub(in crate::store::redis) struct Tls(TlsConnector);

    impl Tls {
        /// Shakes hands with a server that must prove to be this host.
        pub(in crate::store::redis) async fn wrap(
            &self,
            host: &str,
            stream: TcpStream,
        ) -> io::Result<TlsStream<TcpStream>> {
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let name = ServerName::try_from(host)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            self.0.connect(name, stream).await
        }
    }
}
