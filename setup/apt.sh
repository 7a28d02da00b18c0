#!/usr/bin/env bash
# Install the apt packages that a list file names; do nothing when all of them are there.
set -euo pipefail
mapfile -t packages < <(sed 's/#.*//; /^[[:space:]]*$/d' "$1")
missing=()
for package in "${packages[@]}"; do
    [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
        missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0
sudo=""
[[ $EUID -eq 0 ]] || sudo="sudo"
echo "apt: installing ${missing[*]}"
$sudo apt-get update --quiet=2
DEBIAN_FRONTEND=noninteractive $sudo apt-get install --quiet=2 --yes --no-install-recommends "${missing[@]}"
