#!/usr/bin/env bash
# Installs the peers into .venv-peers (about 6 GB with torch's CUDA libraries; llama.cpp is compiled for this processor).
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv .venv-peers
CMAKE_ARGS="-DGGML_NATIVE=ON" .venv-peers/bin/pip install -r bench/peers/requirements.txt
