#!/bin/sh
# `make demo-compose`: the demo's run, submitted to the stack in containers by curl alone; the same spec and data as examples/demo.py.
#   examples/demo_compose.sh [STEPS]      700 is the demo's length; the default is shorter
# Ends with status 1 when the run fails, or when the gateway does not answer for PATIENCE seconds.
# COMPOSE sets another `docker compose` command, e.g. with overlays; GATEWAY_PORT and GATEWAY_HTTPS are those given to `docker compose up`.
set -eu
cd "$(dirname "$0")/.."
steps=${1:-200}
compose=${COMPOSE:-docker compose}
patience=${PATIENCE:-60}
url=http${GATEWAY_HTTPS:+s}://127.0.0.1:${GATEWAY_PORT:-8080}
made=.gradbus/compose

fail() {
  echo "$1" >&2
  exit 1
}
field() { tr ',{' '\n\n' | sed -n "s/^ *\"$1\": *\"\{0,1\}\([^\"}]*\).*/\1/p" | head -n 1; }
# The key must go to the gateway only, so no proxy is used.
ask() {
  curl -sS --noproxy '*' --fail-with-body --connect-timeout 5 --max-time "$patience" --retry 100 --retry-delay 1 --retry-max-time "$patience" \
    --retry-connrefused ${GATEWAY_HTTPS:+--cacert "$made/ca.crt"} -H "Authorization: Bearer $key" "$@"
}
upload() {
  answer=$(ask --data-binary "@$1" "$url/v1/files") || fail "the gateway at $url did not take $1: $answer"
  printf '%s' "$answer" | field id
}

# The rollout worker's image can create the base model; your user owns the files that it writes.
mkdir -p "$made"
if [ ! -f "$made/addition/model/config.json" ]; then
  echo "a base model that is right about a third of the time: a short supervised warm-up"
  $compose run --rm --no-deps -T --user "$(id -u):$(id -g)" -v "$PWD/examples:/examples:ro" -v "$PWD/$made:/made" \
    rollout python /examples/addition/make_model.py /made/addition
fi

key=$($compose run --rm --no-deps -T secrets key)
if [ -n "${GATEWAY_HTTPS:-}" ]; then $compose run --rm --no-deps -T secrets authority >"$made/ca.crt"; fi
model=$made/addition/model
train=$(upload "$made/addition/train.jsonl")
held_out=$(upload "$made/addition/eval.jsonl")
files=
for file in config.json generation_config.json tokenizer.json tokenizer_config.json model.safetensors; do
  if [ -f "$model/$file" ]; then
    digest=$(upload "$model/$file")
    files="$files
\"$file\" = \"$digest\""
  fi
done
spec=$(
  sed -e 's|^path = .*|path = "addition"|' -e "s|^train = .*|train = \"$train\"|" -e "s|^eval = .*|eval = \"$held_out\"|" \
    -e "s|^steps = .*|steps = $steps|" \
    -e "/^file = /{
s/.*/source = '''/
r examples/addition/digits.py
a\\
'''
}" examples/addition/addition.toml
  echo "[model.files]$files"
)

# With the key, a repeated request submits no second run.
answer=$(
  printf '%s\n' "$spec" | ask -H 'Content-Type: application/toml' -H "Idempotency-Key: demo-$$-$(date +%s)" --data-binary @- "$url/v1/runs"
) || fail "the gateway at $url did not take the run: $answer"
run=$(printf '%s' "$answer" | field id)
echo "run $run, $steps steps of GRPO: curl -H 'Authorization: Bearer ...' $url/v1/runs/$run"
while :; do
  # The gateway may be away for a while: the run goes on without it.
  answer=$(ask "$url/v1/runs/$run") || fail "the gateway at $url is away; the run goes on: docker compose up --wait, then ask for $run"
  value() { printf '%s' "$answer" | field "$1"; }
  echo "$(value state)  step $(value step) of $steps  reward $(value reward)  held-out $(value accuracy)"
  case $(value state) in succeeded | failed | cancelled) break ;; esac
  sleep 5
done
echo "$(value state) $(value reason)"
test "$(value state)" = succeeded
