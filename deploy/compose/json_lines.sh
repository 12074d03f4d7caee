#!/bin/sh
# Runs a server, and prints its log lines as JSON like those of the services: json_lines.sh SERVICE COMMAND...
# SERVICE is `nats`, `buffer` or `objects`; a line that does not have the form of its server's lines becomes an `event` as it is.
# Needs only what the servers' images have: busybox's shell and awk, or Debian's.
set -u
export LC_ALL=C
service=$1
shift
pipe=${TMPDIR:-/tmp}/json-lines
rm -f "$pipe"
mkfifo "$pipe"

"$@" >"$pipe" 2>&1 &
server=$!
stopping=
trap 'stopping=yes; kill -TERM "$server"' TERM INT

# With `-W interactive` mawk does not wait for more lines; other awks never wait, and warn that they do not know it.
awk -W interactive -v service="$service" '
  BEGIN {
    split("INF info I info * info WRN warning W warning # warning ERR error E error FTL critical F critical DBG debug TRC debug - debug . debug", words)
    for (at = 1; at in words; at += 2) levels[words[at]] = words[at + 1]
  }

  # [7] 2026/11/23 06:19:52.123456 [INF] Server is ready
  service == "nats" && match($0, /^\[[0-9]+\] [0-9]+\/[0-9]+\/[0-9]+ [0-9:.]+ \[[A-Z]+\] /) {
    day = $2
    gsub("/", "-", day)
    show(substr($4, 2, 3), day "T" $3 "Z")
    next
  }
  # 8:M 23 Nov 2026 06:35:52.254 * Ready to accept connections
  service == "buffer" && match($0, /^[0-9]+:[A-Z] [0-9]+ [A-Z][a-z][a-z] [0-9]+ [0-9:.]+ [-.*#] /) {
    month = (index("JanFebMarAprMayJunJulAugSepOctNovDec", $3) + 2) / 3
    show($6, sprintf("%s-%02d-%sT%sZ", $4, month, $2, $5))
    next
  }
  # I1123 06:19:52.123456 master.go:269 Start
  service == "objects" && match($0, /^[IWEF][0-9]+ [0-9:.]+ +/) { show(substr($0, 1, 1), ""); next }
  { RLENGTH = 0; show("INF", "") }

  # The line without its first RLENGTH characters, which gave the level and the time.
  function show(level, time,    event) {
    event = substr($0, RLENGTH + 1)
    gsub(/[[:cntrl:]]/, " ", event)
    gsub(/["\\]/, "\\\\&", event)
    if (time) time = ", \"timestamp\": \"" time "\""
    print "{\"service\": \"" service "\", \"level\": \"" (level in levels ? levels[level] : "info") "\"" time ", \"event\": \"" event "\"}"
    fflush()
  }
' <"$pipe" 2>/dev/null &
printer=$!

wait "$server"
status=$?
# A signal ends `wait` before the server has ended. Of a server whose status it has told, `wait` says 127.
while [ "$stopping" ]; do
  stopping=
  wait "$server"
  again=$?
  [ "$again" = 127 ] || status=$again
done
wait "$printer"
exit "$status"
