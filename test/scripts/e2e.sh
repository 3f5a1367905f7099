#!/usr/bin/env bash
# Runs the end-to-end tests in three clusters beside each other, since tests wait most of the time: those of the local
# cluster itself, those in which something dies or is replaced, and the others.
set -uo pipefail
GO=${GO:-go}
faults='^Test(Killed|FieldCase0|FieldCase13|Churn|Gang.*(Lost|Controller)|Shipped|NodesAreConfigured|ASickGPU)'

state=$(mktemp -d /tmp/switchyard-XXXX) || exit 1
"$GO" test -C test/localcluster -tags e2e -timeout 20m ./e2e/ &
localcluster=$!
SWITCHYARD_STATE=$state "$GO" test -tags e2e -timeout 40m -run "$faults" ./test/e2e/ &
dying=$!
"$GO" test -tags e2e -timeout 40m -skip "$faults" ./test/e2e/
failed=$?
for suite in $dying $localcluster; do
  wait "$suite" || failed=1
done
rmdir "$state" 2>/dev/null # unless a cluster that was kept is in it
exit "$failed"
