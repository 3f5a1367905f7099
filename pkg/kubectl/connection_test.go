// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// apiServer serves the GangClaims of namespace ml on two pages, and no other kind.
func apiServer(t *testing.T) (kubeconfig string) {
	t.Helper()
	version := metav1.GroupVersionForDiscovery{GroupVersion: "switchyard.dev/v1alpha1", Version: "v1alpha1"}
	page := func(next string, names ...string) v1alpha1.GangClaimList {
		list := v1alpha1.GangClaimList{
			TypeMeta: metav1.TypeMeta{APIVersion: "switchyard.dev/v1alpha1", Kind: "GangClaimList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1", Continue: next},
		}
		for _, name := range names {
			list.Items = append(list.Items, v1alpha1.GangClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}})
		}
		return list
	}
	answers := map[string]any{
		"/api":  metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}},
		"/apis": metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{{Name: "switchyard.dev", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}}},
		"/apis/switchyard.dev/v1alpha1": metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.GroupVersion,
			APIResources: []metav1.APIResource{{Name: "gangclaims", SingularName: "gangclaim", Namespaced: true, Kind: "GangClaim", Verbs: metav1.Verbs{"list"}}},
		},
		"/apis/switchyard.dev/v1alpha1/namespaces/ml/gangclaims":      page("more", "first"),
		"/apis/switchyard.dev/v1alpha1/namespaces/ml/gangclaims#more": page("", "second"),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if next := r.URL.Query().Get("continue"); next != "" {
			path += "#" + next
		}
		answer, there := answers[path]
		if !there || r.Method != http.MethodGet {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return writeKubeconfig(t, server.URL)
}

// writeKubeconfig has a context of namespace ml of the server, and one of no cluster.
func writeKubeconfig(t *testing.T, server string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "a",
		"clusters": [{"name": "a", "cluster": {"server": %q}}],
		"contexts": [{"name": "a", "context": {"cluster": "a", "namespace": "ml"}}, {"name": "b", "context": {"cluster": "none"}}]}`, server)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestKubeconfigFlags(t *testing.T) {
	file := apiServer(t)
	out, err := execute(t, "gangs", "--kubeconfig", file, "--no-headers")
	if err != nil || !strings.HasPrefix(out, "first ") || !strings.Contains(out, "\nsecond ") {
		t.Errorf("all pages of the context's namespace: got %q, %v", out, err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"a file that is not there":     {[]string{"gangs", "--kubeconfig", "/nowhere"}, "/nowhere: no such file"},
		"a context that is not there":  {[]string{"topology", "--kubeconfig", file, "--context", "c"}, `context "c" does not exist; set --kubeconfig or --context`},
		"a cluster that is not there":  {[]string{"topology", "--kubeconfig", file, "--context", "b"}, "find the cluster"},
		"an API server without DRA":    {[]string{"topology", "--kubeconfig", file}, "Switchyard needs Kubernetes 1.37"},
		"a namespace that has no kind": {[]string{"gangs", "--kubeconfig", file, "-n", "other"}, "list gangclaims.switchyard.dev"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := execute(t, tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) || out != "" {
				t.Errorf("got %q, %v, want %q", out, err, tc.want)
			}
		})
	}
}

// Discovery takes no context: only the transport can end it.
func TestAnAPIServerThatDoesNotAnswerIsWaitedForNoLonger(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel() // the user presses Ctrl-C meanwhile
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	cmd := New()
	cmd.SetArgs([]string{"topology", "--kubeconfig", writeKubeconfig(t, server.URL), "--request-timeout", "20s"})
	start := time.Now()
	if err := cmd.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v after %s", err, time.Since(start))
	}
}
