#!/bin/sh
# Ends with what a trainer says if it cannot run here, as where there is no GPU. To be asked before
# anything large is fetched.
# usage: sh dev/data/try_trainer.sh TRAINER [OPTION...]
exec "$@" --model nano --val LICENSE --seq 64 --batch 1 --eval-batches 1 --steps 0 >/dev/null
