#!/bin/sh
# Make the bundle and its trace anew: seven prompt tokens (two full prefills and a decode), then
# five more, past the window of four. A test makes both again and compares every byte.
set -eu
cd "$(dirname "$0")"
topoc compile tiny.topo --weights random:1 -o bundle
rm -rf trace
topoc trace bundle --prompt-ids 2,0,60,5,7,31,12 --max-tokens 5 -o trace
