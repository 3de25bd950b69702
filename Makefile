# Two commands do everything on a fresh Debian machine with a Rust toolchain:
#   make up     build the release binary and start a cluster's API on this machine
#   make test   every check that CI runs
.PHONY: up test setup build

up: build
	target/release/lariat up

build: setup
	cargo build --release --locked --package app

test: setup
	cargo xtask ci

# Installs the system packages that are missing; does nothing when all are there.
setup:
	./scripts/setup
