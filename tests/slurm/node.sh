# A node of a rig: its own name, /tmp and /dev/shm, and of what lies in the machine's /tmp only what all nodes share.
# bash node.sh NAME SHARED...
set -eu
hostname "$1"
shift
mount --rbind /tmp /run/tmp
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
for path in "$@"; do
    case $path in /tmp/*) mkdir -p "$path"; mount --rbind "/run/tmp${path#/tmp}" "$path" ;; esac
done
slurmd -D &
wait
