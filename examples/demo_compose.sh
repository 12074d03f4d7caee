#!/bin/sh
# `make demo-compose`: the demo's run, submitted to the stack in containers by curl alone; the same spec and data as examples/demo.py.
#   examples/demo_compose.sh [STEPS]      700 is the demo's length; the default is shorter
# COMPOSE sets another `docker compose` command, e.g. with overlays; GATEWAY_PORT sets the gateway's port.
set -eu
cd "$(dirname "$0")/.."
steps=${1:-200}
compose=${COMPOSE:-docker compose}
url=http://127.0.0.1:${GATEWAY_PORT:-8080}
made=.gradbus/compose

field() { tr ',{' '\n\n' | sed -n "s/^ *\"$1\": *\"\{0,1\}\([^\"}]*\).*/\1/p" | head -n 1; }
ask() { curl -sS --fail-with-body --retry 15 --retry-delay 1 --retry-connrefused -H "Authorization: Bearer $key" "$@"; }
upload() { ask --data-binary "@$1" "$url/v1/files" | field id; }

# The rollout worker's image can create the base model; your user owns the files that it writes.
mkdir -p "$made"
if [ ! -f "$made/addition/model/config.json" ]; then
  echo "a base model that is right about a third of the time: a short supervised warm-up"
  $compose run --rm --no-deps -T --user "$(id -u):$(id -g)" -v "$PWD/examples:/examples:ro" -v "$PWD/$made:/made" \
    rollout python /examples/addition/make_model.py /made/addition
fi

key=$($compose run --rm --no-deps -T secrets key)
model=$made/addition/model
spec=$(
  sed -e 's|^path = .*|path = "addition"|' -e "s|^train = .*|train = \"$(upload "$made/addition/train.jsonl")\"|" \
    -e "s|^eval = .*|eval = \"$(upload "$made/addition/eval.jsonl")\"|" -e "s|^steps = .*|steps = $steps|" \
    -e "/^file = /{
s/.*/source = '''/
r examples/addition/digits.py
a '''
}" examples/addition/addition.toml
  echo "[model.files]"
  for file in config.json generation_config.json tokenizer.json tokenizer_config.json model.safetensors; do
    if [ -f "$model/$file" ]; then echo "\"$file\" = \"$(upload "$model/$file")\""; fi
  done
)

run=$(printf '%s\n' "$spec" | ask -H 'Content-Type: application/toml' --data-binary @- "$url/v1/runs" | field id)
echo "run $run, $steps steps of GRPO: curl -H 'Authorization: Bearer ...' $url/v1/runs/$run"
missed=0
while :; do
  # The gateway may be away for a minute: the run goes on without it.
  if ! answer=$(ask "$url/v1/runs/$run"); then
    missed=$((missed + 1))
    if [ "$missed" -gt 12 ]; then exit 1; fi
    sleep 5
    continue
  fi
  missed=0
  value() { printf '%s' "$answer" | field "$1"; }
  echo "$(value state)  step $(value step) of $steps  reward $(value reward)  held-out $(value accuracy)"
  case $(value state) in succeeded | failed | cancelled) break ;; esac
  sleep 5
done
echo "$(value state) $(value reason)"
test "$(value state)" = succeeded
