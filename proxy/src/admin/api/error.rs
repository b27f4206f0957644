//! What an error of the API is answered as: `{"error":{"code":…,"message":…}}` with a fitting status. Codes are those of RESP errors
//! (`docs/errors.md`), and a few that only HTTP needs.

use super::json_answer;
use crate::admin::http::Answer;
use hyper::StatusCode;
use serde_json::json;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::admin) struct ApiError {
    pub(in crate::admin) status: StatusCode,
    pub(in crate::admin) code: String,
    pub(in crate::admin) message: String,
}

impl ApiError {
    fn new(status: StatusCode, code: &str, message: &str) -> ApiError {
        ApiError { status, code: code.to_owned(), message: message.to_owned() }
    }

    /// An error of the node: its first word is its code.
    pub(in crate::admin) fn of_text(text: &str) -> ApiError {
        let (code, message) = match text.split_once(' ') {
            Some((code, message)) if code.bytes().all(|byte| byte.is_ascii_uppercase()) => (code, message),
            Some(_) | None => ("ERR", text),
        };
        let status = match code {
            "NOAUTH" | "WRONGPASS" => StatusCode::UNAUTHORIZED,
            "NOPERM" => StatusCode::FORBIDDEN,
            "NOSESSION" => StatusCode::NOT_FOUND,
            "UNAVAILABLE" | "INDETERMINATE" | "OOM" | "LOADING" => StatusCode::SERVICE_UNAVAILABLE,
            "TIER" | "CROSSTIER" | "MODE" | "WRONGTYPE" => StatusCode::CONFLICT,
            "ERR" if message.starts_with("too many failed logins") => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::BAD_REQUEST,
        };
        ApiError::new(status, code, message)
    }

    pub(in crate::admin) fn bad(message: &str) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "ERR", message)
    }

    pub(in crate::admin) fn not_found(message: &str) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "NOTFOUND", message)
    }

    pub(in crate::admin) fn method() -> ApiError {
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD", "this path has another method")
    }

    pub(in crate::admin) fn login_needed() -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "NOAUTH", "log in first: POST /api/v1/login")
    }

    pub(in crate::admin) fn other_host() -> ApiError {
        let message = "come by an address, by localhost or by the name of this node, or set a password for the default user";
        ApiError::new(StatusCode::MISDIRECTED_REQUEST, "HOST", message)
    }

    pub(in crate::admin) fn other_origin() -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "ORIGIN", "the request comes from a page of another site")
    }

    pub(in crate::admin) fn content_type() -> ApiError {
        let message = "a POST needs Content-Type: application/json";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "ERR", message)
    }

    pub(in crate::admin) fn too_large() -> ApiError {
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "ERR", "a body has at most 64 KiB")
    }

    pub(in crate::admin) fn changed(message: &str) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, "CHANGED", message)
    }

    pub(in crate::admin) fn unavailable(message: &str) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message)
    }

    /// The node did not answer in time, or has ended the connection.
    pub(in crate::admin) fn cut_off() -> ApiError {
        let message = "the node did not answer in time; whether an action was carried out is not known";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "INDETERMINATE", message)
    }

    pub(in crate::admin) fn answer(&self) -> Answer {
        json_answer(self.status, &json!({ "error": { "code": self.code, "message": self.message } }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_an_error_decides() {
        let error = ApiError::of_text("NOPERM this user may not");
        assert_eq!((error.status.as_u16(), error.code.as_str()), (403, "NOPERM"));
        assert_eq!(error.message, "this user may not");
        assert_eq!(ApiError::of_text("something else").code, "ERR");
        let guessing = ApiError::of_text(crate::server::access::login::TOO_MANY);
        assert_eq!(guessing.status.as_u16(), 429);
    }
}
