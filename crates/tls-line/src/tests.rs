use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::thread;

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a line");
    (near, listener.accept().expect("a line").0)
}

/// The two ends of an encrypted line, and a clone of the connection beneath.
fn line() -> (Secured, Secured, TcpStream) {
    let (client, server) = tcp();
    let beneath = client.try_clone().expect("a clone");
    let accepting = thread::spawn(move || {
        let acceptor = Acceptor::new().expect("a certificate");
        acceptor.accept(server, DEADLINE)
    });
    let client = connect(client, DEADLINE).expect("a line");
    let server = accepting.join().expect("no panic").expect("a line");
    (client, server, beneath)
}

#[test]
fn both_ends_of_a_line_have_the_same_binding_and_no_other_line_has() {
    let (first, second) = (line(), line());
    assert_eq!(first.0.binding, first.1.binding);
    assert_eq!(second.0.binding, second.1.binding);
    assert_ne!(first.0.binding, second.0.binding);
    assert_ne!(first.0.binding, Binding::default());
}

#[test]
fn bytes_go_both_ways_at_once_and_both_ends_see_the_end() {
    let (client, server, _) = line();
    // More than all buffers on the way: nobody may wait for the other.
    let data: Vec<u8> = (0..20_u32 << 20).map(|at| (at / 7) as u8).collect();
    let exchange = |socket: TcpStream| {
        let (data, sending) = (data.clone(), socket.try_clone().expect("a clone"));
        let sender = thread::spawn(move || {
            (&sending).write_all(&data).expect("a line that takes it");
            sending.shutdown(Shutdown::Write).expect("an end");
        });
        let receiver = thread::spawn(move || {
            let mut received = Vec::new();
            (&socket).read_to_end(&mut received).expect("a line");
            received
        });
        (sender, receiver)
    };
    for (sender, receiver) in [exchange(client.socket), exchange(server.socket)] {
        sender.join().expect("all sent");
        let received = receiver.join().expect("all received");
        assert_eq!(received.len(), data.len());
        assert!(received == data, "not what was sent");
    }
}

/// The first bytes are often on the line before the other side has seen the end of the handshake.
#[test]
fn bytes_that_come_with_the_handshake_are_not_forgotten() {
    let ((client, near), (far, server)) = (tcp(), tcp());
    let (mut answers, mut back) = (far.try_clone().expect("a clone"), near.try_clone());
    thread::spawn(move || std::io::copy(&mut answers, back.as_mut().expect("a clone")));
    // What the client sends arrives in as few pieces as possible.
    thread::spawn(move || {
        let (mut near, mut far, mut bytes) = (near, far, [0; 4096]);
        while let Ok(1..) = near.peek(&mut bytes) {
            thread::sleep(Duration::from_millis(50));
            let count = near.read(&mut bytes).expect("what was seen");
            far.write_all(&bytes[..count]).expect("a line");
        }
    });
    let accepting = thread::spawn(move || {
        let acceptor = Acceptor::new().expect("a certificate");
        acceptor.accept(server, DEADLINE).expect("a line")
    });
    let mut client = connect(client, DEADLINE).expect("a line");
    client.socket.write_all(b"hello").expect("a line");
    let mut server = accepting.join().expect("no panic");
    let patience = server.socket.set_read_timeout(Some(DEADLINE));
    patience.expect("a deadline");
    let mut bytes = [0; 5];
    server.socket.read_exact(&mut bytes).expect("all of it");
    assert_eq!(&bytes, b"hello");
}

#[test]
fn a_connection_that_breaks_ends_both() {
    let (mut client, mut server, beneath) = line();
    beneath.shutdown(Shutdown::Both).expect("a cut");
    for end in [&mut client, &mut server] {
        let mut bytes = [0];
        assert_eq!(end.socket.read(&mut bytes).unwrap_or(0), 0);
    }
}

#[test]
fn nothing_readable_goes_over_the_connection() {
    let (client, server) = tcp();
    let (tapped, tap) = tcp();
    let marker = b"a secret that is easy to find".repeat(100);
    // What the client sends goes through somebody who writes it down.
    let wire = thread::spawn(move || {
        let mut seen = Vec::new();
        let mut forth = tap.try_clone().expect("a clone");
        let (mut back_from, mut back_to) = (server.try_clone().expect("a clone"), tap);
        thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        let mut server = server;
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = forth.read(&mut bytes) {
            seen.extend_from_slice(&bytes[..count]);
            server.write_all(&bytes[..count]).expect("a line");
        }
        seen
    });
    let accepting = thread::spawn(move || {
        let acceptor = Acceptor::new().expect("a certificate");
        acceptor.accept(client, DEADLINE).expect("a line")
    });
    let mut sender = connect(tapped, DEADLINE).expect("a line");
    let mut receiver = accepting.join().expect("no panic");
    sender.socket.write_all(&marker).expect("a line");
    let mut received = vec![0; marker.len()];
    receiver.socket.read_exact(&mut received).expect("a line");
    assert!(received == marker);
    drop((sender, receiver));
    let seen = wire.join().expect("no panic");
    assert!(seen.len() > marker.len());
    assert_eq!(seen[0], FIRST_BYTE);
    assert!(!seen.windows(8).any(|part| part == &marker[..8]));
}

#[test]
fn whoever_does_not_speak_tls_is_refused_in_time() {
    let (mut client, server) = tcp();
    client.write_all(&[b'L'; 64]).expect("a line");
    let acceptor = Acceptor::new().expect("a certificate");
    let refused = acceptor.accept(server, DEADLINE);
    assert!(matches!(refused, Err(TlsError::Protocol(_))), "{refused:?}");

    let (_silent, server) = tcp();
    let refused = acceptor.accept(server, Duration::from_millis(50));
    assert!(matches!(refused, Err(TlsError::TooSlow)), "{refused:?}");
}
