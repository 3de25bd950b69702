//! A small NBD client: enough to say each request once.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::harness::Device;

pub struct NbdClient {
    socket: UnixStream,
    size_bytes: u64,
    cookie: u64,
}

impl NbdClient {
    pub fn connect(path: &Path) -> Result<Self> {
        let mut socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut greeting = [0u8; 18];
        socket.read_exact(&mut greeting)?;
        ensure!(&greeting[..16] == b"NBDMAGICIHAVEOPT", "a newstyle server");
        socket.write_all(&3u32.to_be_bytes())?;
        let mut client = Self {
            socket,
            size_bytes: 0,
            cookie: 0,
        };
        client.option(8, &[])?;
        let infos = client.option(7, &[0, 0, 0, 0, 0, 0])?;
        for info in infos {
            if info[..2] == [0, 0] {
                client.size_bytes = u64::from_be_bytes(info[2..10].try_into()?);
            }
        }
        Ok(client)
    }

    /// Sends an option and collects what is said before the acknowledgement.
    fn option(&mut self, option: u32, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut out = b"IHAVEOPT".to_vec();
        out.extend(option.to_be_bytes());
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
        self.socket.write_all(&out)?;
        let mut infos = Vec::new();
        loop {
            let mut header = [0u8; 20];
            self.socket.read_exact(&mut header)?;
            let kind = u32::from_be_bytes(header[12..16].try_into()?);
            let mut data = vec![0; u32::from_be_bytes(header[16..20].try_into()?) as usize];
            self.socket.read_exact(&mut data)?;
            match kind {
                1 => return Ok(infos),
                3 => infos.push(data),
                other => bail!("option {option} was refused with {other:#x}"),
            }
        }
    }

    /// Sends this many reads in one piece, and collects what they were answered with.
    pub fn read_at_once(&mut self, reads: u64, offset: u64, length: u64) -> Result<Vec<Vec<u8>>> {
        let first = self.cookie + 1;
        self.send_reads(reads, offset, length)?;
        let mut open: BTreeSet<u64> = (first..first + reads).collect();
        let mut answered = Vec::new();
        while !open.is_empty() {
            let (cookie, data) = self.reply()?;
            ensure!(open.remove(&cookie), "{cookie} is answered once");
            answered.push(data);
        }
        Ok(answered)
    }

    /// Sends this many reads in one piece, and takes no answer.
    pub fn send_reads(&mut self, reads: u64, offset: u64, length: u64) -> Result<()> {
        let commands: Vec<u8> = (0..reads)
            .flat_map(|_| self.command(0, offset, length))
            .collect();
        Ok(self.socket.write_all(&commands)?)
    }

    /// The answer to the oldest read that was sent.
    pub fn take_answer(&mut self) -> Result<Vec<u8>> {
        self.reply().map(|(_, data)| data)
    }

    fn request(&mut self, command: u16, offset: u64, length: u64, data: &[u8]) -> Result<Vec<u8>> {
        let mut out = self.command(command, offset, length);
        out.extend(data);
        self.socket.write_all(&out)?;
        let (cookie, data) = self.reply()?;
        ensure!(cookie == self.cookie, "to this request");
        Ok(data)
    }

    fn command(&mut self, command: u16, offset: u64, length: u64) -> Vec<u8> {
        self.cookie += 1;
        let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
        out.extend(0u16.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend((length as u32).to_be_bytes());
        out
    }

    fn reply(&mut self) -> Result<(u64, Vec<u8>)> {
        let mut header = [0u8; 20];
        self.socket.read_exact(&mut header)?;
        ensure!(
            header[..4] == 0x668e_33efu32.to_be_bytes(),
            "a structured reply"
        );
        let cookie = u64::from_be_bytes(header[8..16].try_into()?);
        let kind = u16::from_be_bytes(header[6..8].try_into()?);
        let mut payload = vec![0; u32::from_be_bytes(header[16..20].try_into()?) as usize];
        self.socket.read_exact(&mut payload)?;
        match kind {
            0 => Ok((cookie, Vec::new())),
            1 => Ok((cookie, payload.split_off(8))),
            other => bail!("error {other:#x}, number {:?}", &payload[..4]),
        }
    }
}

impl Device for NbdClient {
    fn size_bytes(&mut self) -> Result<u64> {
        Ok(self.size_bytes)
    }

    fn read(&mut self, offset: u64, length: u64) -> Result<Vec<u8>> {
        self.request(0, offset, length, &[])
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.request(1, offset, data.len() as u64, data).map(|_| ())
    }

    fn write_zeroes(&mut self, offset: u64, length: u64) -> Result<()> {
        self.request(6, offset, length, &[]).map(|_| ())
    }

    fn discard(&mut self, offset: u64, length: u64) -> Result<()> {
        self.request(4, offset, length, &[]).map(|_| ())
    }

    fn flush(&mut self) -> Result<()> {
        self.request(3, 0, 0, &[]).map(|_| ())
    }
}
