// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package verify checks what no compiler does: that manifests and the examples in the documentation are
// objects Kubernetes accepts, that links lead somewhere, and that the linter's rules catch what they are
// there for. Its tests run with the build tag verify (make verify) and read the repository they lie in.
package verify
