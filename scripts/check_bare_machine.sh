#!/usr/bin/env bash
# Proves that octet needs nothing but what its documents say: makes an empty Debian in a folder (mmdebstrap, no Docker),
# and in it runs the README's first commands, or the steps of container/Dockerfile.
#
#   scripts/check_bare_machine.sh demo      git clone, make demo
#   scripts/check_bare_machine.sh package   container/build_octet.sh; then the packed folder in a second, empty Debian
#
# Needs root, mmdebstrap and about 5 GB in TMPDIR. Takes 10 to 25 minutes on two cores. KEEP=1 keeps the folders.
set -euo pipefail
what=${1:-demo}
case $what in demo | package) ;; *)
  echo "check_bare_machine: unknown step '$what', expected demo or package" >&2
  exit 2
  ;;
esac
repository=$(cd "$(dirname "$0")/.." && pwd)
if [[ $(id -u) -ne 0 ]] || ! command -v mmdebstrap >/dev/null; then
  echo "check_bare_machine: needs root and the package mmdebstrap" >&2
  exit 1
fi
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
work=$(mktemp -d "${TMPDIR:-/tmp}/octet-bare-XXXXXX")
mounted=()
clean_up() {
  local place
  for place in "${mounted[@]}"; do
    umount "$place" 2>/dev/null || umount -l "$place" 2>/dev/null || true
    if mountpoint -q "$place"; then
      echo "check_bare_machine: $place is still mounted, so $work is not removed" >&2
      return
    fi
  done
  if [[ -z ${KEEP:-} ]]; then rm -rf --one-file-system "$work"; else echo "kept: $work"; fi
}
trap clean_up EXIT

# make_root FOLDER PACKAGES: an empty system that reaches the same package archives as this one.
make_root() {
  local root=$1 packages=$2 sources=() file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    if [[ -s $file && $file == *.list || $file == *.sources && -s $file ]]; then sources+=("$file"); fi
  done
  if ! mmdebstrap --variant=minbase --include="$packages" "$release" "$root" "${sources[@]}" >"$work/mmdebstrap.log" 2>&1; then
    tail -n 30 "$work/mmdebstrap.log" >&2
    echo "check_bare_machine: mmdebstrap could not make an empty $release" >&2
    exit 1
  fi
  cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
  # A link in the new system may lead out of it: files replace links, and are never written through them.
  for file in /etc/pip.conf /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    if [[ -e $file ]]; then cp -L --remove-destination "$file" "$root$file"; fi
  done
  mount -t proc proc "$root/proc"
  mounted=("$root/proc" "${mounted[@]}")
  mount --bind /dev "$root/dev"
  mounted=("$root/dev" "${mounted[@]}")
}

# Settings of this machine's network, and nothing else of its environment.
variables=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb)
while IFS= read -r line; do
  case $line in http_proxy=* | https_proxy=* | no_proxy=* | HTTP_PROXY=* | HTTPS_PROXY=* | NO_PROXY=* | PIP_* | SSL_CERT_FILE=* | REQUESTS_CA_BUNDLE=*)
    variables+=("$line") ;;
  esac
done < <(env)
inside() {
  local root=$1
  shift
  env -i "${variables[@]}" chroot "$root" "$@"
}

start=$SECONDS
root=$work/root
make_root "$root" ca-certificates,make,git
echo "an empty $release after $((SECONDS - start)) s"
# As a user gets it: a clone without build folders.
git clone --quiet "$repository" "$root/octet"

if [[ $what == demo ]]; then
  inside "$root" bash -c "cd /octet && make demo JOBS=${JOBS:-$(nproc)}"
  echo "make demo passed in an empty $release after $((SECONDS - start)) s"
  exit 0
fi

inside "$root" env JOBS="${JOBS:-$(nproc)}" /octet/container/build_octet.sh /octet OFF
echo "built after $((SECONDS - start)) s"
# As the last stage of the Dockerfile: only the packed folder, in a system without any of octet's libraries.
second=$work/second
make_root "$second" ca-certificates
cp -a "$root/opt/octet" "$second/srv/moved"
inside "$second" /srv/moved/bin/octet train --max_steps 3 --num_threads 1 --output_dir /tmp/runs
inside "$second" sh -c "! ldd /srv/moved/bin/octet | grep 'not found'"
echo "the packed folder runs in an empty $release; all done after $((SECONDS - start)) s"
