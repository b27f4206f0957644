//! The common name (CN) of a client certificate, which may name its ACL user.
//!
//! Only a certificate that rustls has verified is asked. One with two common names has none: nobody is two users.

use x509_cert::der::asn1::{PrintableStringRef, Utf8StringRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::Decode;
use x509_cert::Certificate;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
/// The upper bound of X.509 itself is 64 characters.
const NAME_BYTES_MAX: usize = 256;

/// The one common name in the subject, if it is printable text of a sensible length.
#[must_use]
pub fn of(der: &[u8]) -> Option<String> {
    let certificate = Certificate::from_der(der).ok()?;
    let subject = &certificate.tbs_certificate.subject;
    let mut names = subject.0.iter().flat_map(|part| part.0.iter()).filter(|part| part.oid == COMMON_NAME);
    let (name, None) = (names.next()?, names.next()) else { return None };
    let utf8 = name.value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
    let name = utf8
        .or_else(|_| name.value.decode_as::<PrintableStringRef<'_>>().map(|text| text.as_str().to_owned()));
    let is_name = |name: &String| {
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control)
    };
    name.ok().filter(is_name)
}

#[cfg(test)]
mod tests {
    use redfence_certs::{Authority, Usage};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::CertificateDer;

    #[test]
    fn the_name_of_a_certificate_is_found_and_an_odd_one_is_none() {
        let authority = Authority::new("test").unwrap();
        let name = |common_name: &str| {
            let pair = authority.issue(common_name, &[], Usage::Client).unwrap();
            super::of(&CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap())
        };
        assert_eq!(name("app").as_deref(), Some("app"));
        assert_eq!(name("jürgen").as_deref(), Some("jürgen"));
        assert_eq!(name("evil\nname"), None);
        assert_eq!(name(""), None);
        assert_eq!(super::of(b"no certificate"), None);
    }
}
