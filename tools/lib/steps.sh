# Sourced by the tools: long steps that show progress, and say why they failed.

if [ -t 1 ]; then
  steps_tty=1
else
  steps_tty=
fi
steps_ticker=

steps_say() { printf "%s\n" "$@"; }

steps_fail() {
  printf "%s\n" "$@" >&2
  exit 1
}

steps_elapsed() {
  local seconds=$1
  if [ "$seconds" -lt 60 ]; then
    printf '%d s' "$seconds"
  else
    printf '%d min %02d s' $((seconds / 60)) $((seconds % 60))
  fi
}

# "120/300" out of the log of a build, else nothing.
steps_progress() {
  tail -c 4096 "$1" 2>/dev/null | grep -oE '^\[[0-9]+/[0-9]+\]' | tail -n 1 | tr -d '[]' || true
}

# Runs beside a step: a line that is rewritten on a terminal, elsewhere a new one each 15 s. Ends
# with the tool, however that ends.
steps_tick() {
  local title=$1 log=$2 main=$3 begin=$SECONDS now done_part
  local marks='|/-\' i=0
  while kill -0 "$main" 2>/dev/null; do
    now=$((SECONDS - begin))
    if [ -n "$steps_tty" ]; then
      done_part=$(steps_progress "$log")
      printf '\r\033[K%s %s  %s  %s' "${marks:i++%4:1}" "$title" "$(steps_elapsed $now)" \
        "$done_part"
    elif [ "$now" -gt 0 ] && [ $((now % 15)) -eq 0 ]; then
      done_part=$(steps_progress "$log")
      printf '  … %s: %s %s\n' "$title" "$(steps_elapsed $now)" "$done_part"
    fi
    # It outlives a ticker that is ended; so it must hold nothing that others wait for.
    sleep 1 >/dev/null 2>&1 9>&-
  done
}

steps_end_ticker() {
  if [ -n "$steps_ticker" ]; then
    kill "$steps_ticker" 2>/dev/null || true
    wait "$steps_ticker" 2>/dev/null || true
    steps_ticker=
    [ -z "$steps_tty" ] || printf '\r\033[K'
  fi
}
trap steps_end_ticker EXIT

# steps_run TITLE LOG COMMAND...: runs the command with its output in LOG. On failure prints the last
# 20 lines and where the rest is, and ends the tool with the command's exit status.
steps_run() {
  local title=$1 log=$2 status=0 begin=$SECONDS
  shift 2
  mkdir -p "$(dirname "$log")"
  : >"$log"
  [ -n "$steps_tty" ] || steps_say "$title …"
  steps_tick "$title" "$log" $$ &
  steps_ticker=$!
  "$@" >"$log" 2>&1 </dev/null || status=$?
  steps_end_ticker
  if [ "$status" -ne 0 ]; then
    {
      printf '%s: failed (exit status %d). Its last lines:\n' "$title" "$status"
      tail -n 20 "$log" | sed 's/^/  | /'
      printf 'All of it: %s\n' "$log"
    } >&2
    exit "$status"
  fi
  steps_say "$title: done in $(steps_elapsed $((SECONDS - begin)))"
}

# How many compilers or tests to run at once: as many as there are cores, with 2 GB for each (a file
# that includes libtorch takes nearly that much).
steps_jobs() {
  local cores memory_kb
  cores=$(nproc)
  memory_kb=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  local fit=$((memory_kb / 2000000))
  [ "$fit" -ge 1 ] || fit=1
  if [ "$fit" -lt "$cores" ]; then echo "$fit"; else echo "$cores"; fi
}
