#!/bin/bash
# Install the lab for a class: one environment and one cache of data, in a folder that all can read.
# Usage, in a checkout of the lab: bash slurm/site/install.sh /shared/scaling-lab [PYTHON]
set -euo pipefail

target=${1:?name a folder that learners and nodes can read}
python=${2:-python3.11}
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
umask 022

"$python" -m venv "$target/venv"
"$target/venv/bin/pip" install --quiet --requirement "$checkout/requirements.lock"
"$target/venv/bin/pip" install --quiet --no-deps "$checkout"

# Data of the lessons that is not made on the spot; without a network, copy the cache of a machine that has one.
mkdir -p "$target/cache"
export LAB_CACHE=$target/cache
cd "$checkout"
for study in notebooks/lessons/studies/*/; do
  "$target/venv/bin/lab" fetch "$study"
done

chmod -R a+rX "$target"
echo "Learners run $target/venv/bin/lab; their profile names $target/venv/bin/python and $target/cache."
