# The first process of one command's pid namespace, outside its container: runs Apptainer, and ends when that ends.
# Arguments: the descriptor to report on, the sandbox's own folder, Apptainer's configuration, then the command line.
status=$1 home=$2 configuration=$3
shift 3

terminate() {  # everything in the container, which has a pid namespace of its own below this one
  own=$(readlink /proc/self/ns/pid)
  for process in /proc/[0-9]*; do
    space=$(readlink "$process/ns/pid")
    [ -n "$space" ] && [ "$space" != "$own" ] && kill -TERM "${process#/proc/}"
  done 2>/dev/null
}
trap terminate TERM

export HOME=$home TMPDIR=$home APPTAINER_CONFIGDIR=$home
mkdir -p "$home/overlay" "$home/shm" && chmod 1777 "$home/shm" && : >"$home/begun" &&
  sed 's/^enable overlay = .*/enable overlay = driver/' "$configuration" >"$home/apptainer.conf" || exit 1
ip link set lo up 2>/dev/null  # where iproute2 is there; all other network is not
printf '{"child-pid": %d}\n' $$ >&"$status"

eval "\"\$@\" <&0 $status>&- &"
program=$!
while :; do
  wait "$program"
  code=$?
  kill -0 "$program" 2>/dev/null || break  # else it was a signal that ended the waiting
done
# 255 is Apptainer's own as well: then only a command that did begin has ended with it.
[ "$code" = 255 ] && [ ! -s "$home/begun" ] || printf '{"exit-code": %d}\n' "$code" >&"$status"
exit "$code"
