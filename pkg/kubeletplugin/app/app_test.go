// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
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
)

func validOptions(t *testing.T) *Options {
	t.Helper()
	o := NewOptions(func(string) string { return "" })
	o.NodeName = "node-a"
	o.RegistryDir = t.TempDir()
	return o
}

func TestValidate(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		words  []string
	}{
		"the defaults with a node name are valid":                  {change: func(*Options) {}},
		"a node name is required, and where it comes from is said": {func(o *Options) { o.NodeName = "" }, []string{"--node-name", "NODE_NAME", "spec.nodeName"}},
		"a node name is a DNS name":                                {func(o *Options) { o.NodeName = "Node_A" }, []string{"--node-name", "Node_A"}},
		"a UID is no path":                                         {func(o *Options) { o.PodUID = "../x" }, []string{"--pod-uid", "metadata.uid"}},
		"directories are absolute":                                 {func(o *Options) { o.PluginDir = "plugins" }, []string{"--plugin-dir", "absolute"}},
		"optional paths are absolute, or empty":                    {func(o *Options) { o.DevRoot = "dev" }, []string{"--dev-root", "absolute", "empty"}},
		"an interval has a floor":                                  {func(o *Options) { o.DiscoveryInterval = time.Millisecond }, []string{"--discovery-interval", "1s"}},
		"so has the other":                                         {func(o *Options) { o.ReconcileInterval = 0 }, []string{"--reconcile-interval", "1s"}},
		"a rate of zero is a trap":                                 {func(o *Options) { o.KubeAPIQPS = 0 }, []string{"--kube-api-qps", "negative"}},
		"a rate needs a burst":                                     {func(o *Options) { o.KubeAPIQPS = 5 }, []string{"--kube-api-burst"}},
		"MIG is for GPUs that there can be":                        {func(o *Options) { o.MIGGPUs = "first" }, []string{"--mig-gpus", `"first"`, "nvidia-smi -L"}},
		"a sick GPU keeps pods away, or evicts":                    {func(o *Options) { o.HealthEffect = "None" }, []string{"--health-effect", `"None"`, "NoSchedule", "NoExecute"}},
		"an XID is a number with an effect":                        {func(o *Options) { o.HealthXIDs = map[string]string{"ecc": "Ignore", "48": "kill"} }, []string{"--health-xid", `"ecc"`, `XID 48`, `"kill"`}},
		"a log has one of two formats":                             {func(o *Options) { o.Logging.Format = "xml" }, []string{"--logging-format", "xml", "json"}},
		"a line of the log waits for some time":                    {func(o *Options) { o.Logging.FlushFrequency = 0 }, []string{"--log-flush-frequency", "1s"}},
		"an address has a port":                                    {func(o *Options) { o.MetricsAddress = "localhost" }, []string{"--metrics-address", "0 to switch it off"}},
		"servers can be off":                                       {change: func(o *Options) { o.MetricsAddress, o.GRPCHealthAddress = "0", "0" }},
		"the health service can have a Unix socket":                {change: func(o *Options) { o.GRPCHealthAddress = "unix:/run/health.sock" }},
		"a socket's path has a limit":                              {func(o *Options) { o.PluginDir = "/" + strings.Repeat("x", 100) }, []string{"--plugin-dir", "107", "shorter"}},
		"with a pod's UID in it too":                               {func(o *Options) { o.PluginDir, o.PodUID = "/"+strings.Repeat("x", 70), strings.Repeat("u", 36) }, []string{"--plugin-dir"}},
		"a registry that is not there is not the kubelet's":        {func(o *Options) { o.RegistryDir = "/does/not/exist" }, []string{"--registry-dir", "plugins_registry"}},
		"every mistake is told at once":                            {func(o *Options) { o.NodeName, o.CDIDir = "", "cdi" }, []string{"--node-name", "--cdi-dir"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := validOptions(t)
			test.change(o)
			err := o.Validate()
			if (err != nil) != (len(test.words) > 0) {
				t.Fatalf("Validate = %v, want an error with %q", err, test.words)
			}
			for _, word := range test.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error %q does not say %q", err, word)
				}
			}
		})
	}
}

func TestEnvironmentFillsFlags(t *testing.T) {
	o := NewOptions(func(name string) string { return "from-" + name })
	if o.NodeName != "from-NODE_NAME" || o.PodUID != "from-POD_UID" || o.PodName != "from-POD_NAME" || o.PodNamespace != "from-POD_NAMESPACE" {
		t.Errorf("options %+v do not come from the environment", o)
	}
}

func TestCommandRefusesFlagsBeforeItTouchesAnything(t *testing.T) {
	cmd := NewCommand("plugin", func(Options) (Platform, error) {
		t.Error("the hardware was opened")
		return nil, errors.New("opened")
	})
	cmd.SetArgs([]string{"--node-name=", "--logging-format=text"})
	cmd.SetOut(new(bytes.Buffer))
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--node-name") {
		t.Errorf("Execute = %v, want an error about --node-name", err)
	}
}

// The rate limiter of a client without settings lets 10 requests through and then 5 a second.
func TestFieldCase13a_NoClientSideThrottling(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf") {
			t.Errorf("asks for %q, want protobuf first", accept)
		}
		_, _ = fmt.Fprint(w, `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"a"}}`)
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	content := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: %q}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\nusers: [{name: a, user: {}}]\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	o := validOptions(t)
	o.Kubeconfig = kubeconfig
	client, err := newClient(*o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.ResourceV1().ResourceClaims("default").Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if limiter := client.ResourceV1().RESTClient().GetRateLimiter(); limiter != nil {
		t.Errorf("the client has a rate limiter of %v requests a second", limiter.QPS())
	}
}

func TestClientNeedsAClusterOrAKubeconfig(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, test := range map[string]struct{ kubeconfig, word string }{
		"no pod and no file":       {"", "--kubeconfig"},
		"a file that is not there": {"/does/not/exist", "--kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			o := validOptions(t)
			o.Kubeconfig = test.kubeconfig
			if _, err := newClient(*o); err == nil || !strings.Contains(err.Error(), test.word) {
				t.Errorf("newClient = %v, want an error about %s", err, test.word)
			}
		})
	}
}

func TestCopyProgram(t *testing.T) {
	dir := t.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(source, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	copied := func() string {
		t.Helper()
		if err := copyProgram(source, target); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(target)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	write("one")
	if got := copied(); got != "one" {
		t.Errorf("copied %q", got)
	}
	info, err := os.Stat(target)
	if err != nil || info.Mode() != programPerm {
		t.Fatalf("the copy is %v, %v; want a program", info, err)
	}
	first := info
	copied()
	if info, _ = os.Stat(target); !os.SameFile(first, info) {
		t.Error("copied again although it is the same")
	}
	write("another")
	if got := copied(); got != "another" {
		t.Errorf("the copy is still %q", got)
	}
}
