#!/bin/bash
# get_apptainer.sh FOLDER: a real apptainer in FOLDER/bin on a Debian-like machine whose libc is older than the package
# of Debian sid wants. Its program finds its other parts beside itself, and gets sid's libc from FOLDER/lib, so nothing
# outside FOLDER changes. Packages come from where this machine has its own of Debian from. Needs apt-get, dpkg-deb and
# patchelf, and runs as any user; takes some seconds.
set -euo pipefail
home=$(realpath -m "${1:?usage: get_apptainer.sh FOLDER}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,debs,root} "$home"/{bin,lib}
source=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | grep -m1 '/debian/$')
cat > "$work/sid.sources" <<EOF
Types: deb
URIs: $source
Suites: sid
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
apt=(apt-get -q -o Dir::Etc::sourcelist="$work/sid.sources" -o Dir::Etc::sourceparts=/dev/null
     -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o Acquire::Languages=none
     -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)")
"${apt[@]}" update
(cd "$work/debs" && "${apt[@]}" download apptainer libc6 libseccomp2 libsqlite3-0)
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
libraries=$(dirname "$(find "$work/root" -name libc.so.6)")
loader=$(basename "$(find "$libraries" -name 'ld-linux-*')")
cp -a "$libraries"/*.so* "$home/lib/"
cp -a "$work/root/etc" "$work/root/var" "$home/"
parts=$home/lib/$(basename "$libraries")
mkdir -p "$parts"
cp -a "$libraries/apptainer" "$parts/"
ln -sfn ../var "$home/lib/var"
ln -sfn ../etc "$home/lib/etc"
cp "$work/root/usr/bin/apptainer" "$home/bin/"
for program in "$home/bin/apptainer" "$parts/apptainer/bin/starter"; do
  patchelf --force-rpath --set-interpreter "$home/lib/$loader" --set-rpath "$home/lib" "$program"
done
"$home/bin/apptainer" --version
