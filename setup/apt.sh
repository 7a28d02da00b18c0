#!/usr/bin/env bash
# Install the apt packages that a list file names; do nothing, silently, if all of them are installed.
#
# A line holds one package, or alternatives in order of preference: `first | second`. {release} and {arch} are the
# running kernel's release and dpkg's architecture.
set -euo pipefail

is_installed() {
    [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

has_candidate() {
    [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [^\(] ]]
}

release=$(uname -r)
arch=$(dpkg --print-architecture)
missing=()  # lines of which nothing is installed
while read -ra names; do
    for name in "${names[@]}"; do
        is_installed "$name" && continue 2
    done
    missing+=("${names[*]}")
done < <(sed "s/#.*//; s/|/ /g; s/{release}/$release/g; s/{arch}/$arch/g; /^[[:space:]]*$/d" "$1")
[[ ${#missing[@]} -gt 0 ]] || exit 0

sudo=()
if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || { echo "apt: root needed to install: ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT

apt_get() {
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get --quiet=2 -o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1 ||
        { cat "$log" >&2; return 1; }
}

apt_get update || echo "apt: the package lists could not be renewed; going on with the old ones" >&2
chosen=()
for line in "${missing[@]}"; do
    read -ra names <<<"$line"
    for name in "${names[@]}"; do
        has_candidate "$name" && { chosen+=("$name"); continue 2; }
    done
    echo "apt: none of these is known here: ${names[*]} (on Ubuntu: add-apt-repository universe)" >&2
    exit 1
done
echo "apt: installing ${chosen[*]}"
apt_get install --yes --no-install-recommends "${chosen[@]}"
