//! An API that answers by a script: for what no API of ours does, and for answers that it never gives.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Value, json};

/// The status, and the body: JSON, or a log.
pub struct Answered {
    pub status: u16,
    pub body: String,
}

pub fn refused(status: u16, message: &str) -> Answered {
    let body = json!({"kind": "Status", "status": "Failure", "code": status, "message": message});
    Answered {
        status,
        body: body.to_string(),
    }
}

pub fn answered(body: &impl ToString) -> Answered {
    Answered {
        status: 200,
        body: body.to_string(),
    }
}

/// A manager that is at work, and nothing else.
pub fn empty_cluster(path: &str) -> Answered {
    let lease = json!({
        "metadata": {"name": "lariat-manager", "namespace": "longhorn-system"},
        "spec": {"holderIdentity": "m", "renewTime": format!("{:.6}", Timestamp::now())},
    });
    match path {
        "/version" => answered(&json!({"major": "1", "minor": "36"})),
        _ if path.ends_with("/leases") => answered(&json!({"items": [lease]})),
        _ => answered(&json!({"metadata": {}, "items": []})),
    }
}

/// Answers every GET by what is after it: path and query. Returns the address.
pub fn serve(script: fn(&str) -> Answered) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer_one(stream, script));
        }
    });
    format!("http://{address}")
}

fn answer_one(mut stream: TcpStream, script: fn(&str) -> Answered) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let request = lines.next()?.ok()?;
    // The rest of the head ends with an empty line; none of these requests has a body.
    lines.by_ref().map_while(Result::ok).find(String::is_empty);
    let Answered { status, body } = script(request.split(' ').nth(1)?);
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .ok()
}

/// A kubeconfig for this address.
pub fn kubeconfig_of(folder: &Path, server: &str) -> PathBuf {
    let path = folder.join("config");
    let named = |key: &str, value: Value| json!([{"name": "x", key: value}]);
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "contexts": named("context", json!({"cluster": "x", "user": "x"})),
        "clusters": named("cluster", json!({"server": server})),
        "users": named("user", json!({"token": "t"})),
    });
    std::fs::write(&path, text.to_string()).expect("a kubeconfig");
    path
}
