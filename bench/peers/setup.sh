#!/usr/bin/env bash
# Installs the peers into .venv-peers: about 6 GB with the CUDA libraries of torch; llama.cpp is compiled, for this processor.
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv .venv-peers
.venv-peers/bin/pip install -r bench/peers/requirements.txt
