#!/bin/bash
# Download, verify and start the node program. On failure, wait for tee to complete the log, upload it, and shut down.
set -euo pipefail
root=${TRAINSTACK_ROOT:-/opt/trainstack} dir=bundle/@SHA256@
export AWS_DEFAULT_REGION=@REGION@
mkdir -p "$root"
sed '1,/^exit # node/d' "$0" >"$root/node.json"
cd "$root"
exec 3>&1 > >(tee -a shim.log) 2>&1
# shellcheck disable=SC2329
fail() {
  id=$(cloud-init query instance_id || hostname)
  timeout 30 aws s3 cp --only-show-errors "$root/shim.log" "s3://@LOGS@/nodes/@ROLE@:$id/shim.log" || :
  shutdown -h now
}
trap 'echo "line $LINENO failed"; exec >&3 2>&1; wait $! || :; fail' ERR
for pause in 1 2 4 8 0; do
  timeout 120 aws s3api get-object --bucket @BUCKET@ --key @KEY@ b.zip >/dev/null && break
  sleep $pause
done
sha256sum -c --quiet <<<"${dir#*/}  b.zip"
@PYTHON@ -m zipfile -e b.zip $dir
cd $dir
@PYTHON@ -m bootstrap boot --root "$root"
exit # node document
