#!/bin/bash
# Fetch the node program, check it, hand over to it; on any failure report and give the machine back.
set -euo pipefail
root=${TRAINSTACK_ROOT:-/opt/trainstack}
export AWS_DEFAULT_REGION=@REGION@
mkdir -p "$root/state" && exec > >(tee -a "$root/shim.log") 2>&1
# shellcheck disable=SC2329
give_back() {
  echo "shim failed in line $1: giving the machine back"
  timeout 30 aws s3 cp --quiet "$root/shim.log" "s3://@LOGS@/nodes/$(hostname)/shim.log" || echo "log not uploaded"
  shutdown -h now
}
trap 'give_back $LINENO' ERR
zip=$root/bundle.zip dir=$root/bundle/@SHA256@
for try in 1 2 3 4 5; do
  timeout 120 aws s3 cp --quiet s3://@BUNDLE@ "$zip" && break
  echo "try $try of 5 failed" && sleep $((try < 5 ? try : 0))
done
echo "@SHA256@  $zip" | sha256sum --check --quiet
mkdir -p "$dir" && @PYTHON@ -m zipfile -e "$zip" "$dir"
sed '1,/^exit # node document$/d' "$0" > "$root/node.json"
cd "$dir" && @PYTHON@ -m bootstrap boot --root "$root"
exit # node document
