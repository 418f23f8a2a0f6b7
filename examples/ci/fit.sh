#!/usr/bin/env bash
# Any other CI: does the change still fit in 24 GiB? The status is 0 if it fits, also if it is tight.
set -uo pipefail
base=$(git merge-base origin/main HEAD)
python -m forebay fit --cards rtx_4090 --memory 24GiB --base "$base" train.py --batch 8 | tee fit.md
status=$?
((status == 3)) || exit "$status"
