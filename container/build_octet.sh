#!/usr/bin/env bash
# Builds octet in an empty Debian or Ubuntu system, as root, and leaves it in /opt/octet: build_octet.sh SOURCE [CUDA]
# The steps of container/Dockerfile. scripts/check_bare_machine.sh runs them without Docker.
# CUDA is as in 'make CUDA=...': OFF (the default) or ON.
set -euo pipefail
source_folder=$1
cuda=${2:-OFF}
cd "$source_folder"
if ! command -v make >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends make ca-certificates >/dev/null
fi
make package CUDA="$cuda"
mkdir -p /opt/octet
tar -xzf build/octet-*.tar.gz -C /opt/octet --strip-components=1
/opt/octet/bin/octet --version
