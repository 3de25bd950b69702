# The image of the manager, the attacher and the node agent: docker build -t REGISTRY/lariat:0.1.0 .
FROM rust:1.95.0-bookworm AS build
WORKDIR /source
COPY Cargo.toml Cargo.lock rust-toolchain.toml ./
COPY .cargo .cargo
COPY crates crates
RUN cargo build --profile dist --locked --package app \
    && strip target/dist/lariat

FROM debian:bookworm-slim
# What the CSI node service and the engines call: mkfs, fsck, blkid, mount, and the FUSE tools.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates \
        e2fsprogs \
        fuse3 \
        mount \
        util-linux \
        xfsprogs \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/target/dist/lariat /usr/local/bin/lariat
# For the manager and the attacher. The node agent mounts file systems: its manifest asks for root, and for more.
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/lariat"]
