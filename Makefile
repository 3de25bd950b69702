# Two commands do everything on a fresh Debian machine with a Rust toolchain:
#   make up     build the release binary and start a cluster's API on this machine
#   make test   every check that needs no Kubernetes
# and one compares with what users run, as CI does, too (needs Go):
#   make conformance
.PHONY: up test conformance setup build

up: build
	target/release/lariat up

build: setup
	cargo build --release --locked --package app

test: setup
	cargo xtask ci

conformance: setup
	cargo xtask conformance

# Installs the system packages that are missing; does nothing when all are there.
setup:
	./scripts/setup
