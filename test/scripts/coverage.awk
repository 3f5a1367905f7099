# Reads a Go cover profile and fails where the statements that tests reach in a package are fewer than
# its share: awk -v minimum=90 -v packages="api/v1alpha1 pkg/device" -f coverage.awk cover.out
# Generated files do not count. A package without a single statement in the profile fails too.

FNR == 1 || $1 ~ /\/zz_generated[^\/]*\.go:/ { next }

{
  file = $1
  sub(/:.*/, "", file)
  sub(/\/[^\/]*$/, "", file)
  # With several test binaries a block comes up several times: it is covered when one of them reached it.
  if (!($1 in statements)) { statements[$1] = $2; package[$1] = file }
  if ($3 > 0) covered[$1] = 1
}

END {
  for (block in statements) {
    total[package[block]] += statements[block]
    if (block in covered) reached[package[block]] += statements[block]
  }
  count = split(packages, wanted, " ")
  for (i = 1; i <= count; i++) {
    name = "github.com/switchyard-dev/switchyard/" wanted[i]
    if (!total[name]) { printf "coverage: no statements of %s in the profile\n", wanted[i]; failed = 1; continue }
    share = 100 * reached[name] / total[name]
    verdict = share >= minimum ? "" : sprintf("  below %d %%", minimum)
    printf "coverage: %5.1f %%  %s%s\n", share, wanted[i], verdict
    if (verdict) failed = 1
  }
  exit failed
}
