#!/bin/bash
# Fetch the node program, check it, start it; on failure report and give the machine back.
set -euo pipefail
root=${TRAINSTACK_ROOT:-/opt/trainstack} dir=bundle/@SHA256@
export AWS_DEFAULT_REGION=@REGION@
mkdir -p "$root"
sed '1,/^exit # node/d' "$0" >"$root/node.json"
cd "$root"
exec > >(tee -a shim.log) 2>&1
# shellcheck disable=SC2329
give_back() {
  id=$(cat /var/lib/cloud/data/instance-id || hostname)
  timeout 30 aws s3 cp --quiet "$root/shim.log" "s3://@LOGS@/nodes/$id/shim.log" || :
  shutdown -h now
}
trap 'echo "line $LINENO failed"; exec &>/dev/null; wait $! || :; give_back' ERR # the log is whole when tee has ended
for pause in 1 2 4 8 0; do
  if timeout 120 aws s3 cp --quiet s3://@BUNDLE@ b.zip; then break; fi
  sleep $pause
done
echo "${dir#*/}  b.zip" | sha256sum -c --quiet
@PYTHON@ -m zipfile -e b.zip $dir
cd $dir
@PYTHON@ -m bootstrap boot --root "$root"
exit # node document
