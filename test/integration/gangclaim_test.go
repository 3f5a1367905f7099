// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// The CRD as the API server understands it: what it refuses, defaults, shows and merges.

// gangClaims is a client for the GangClaims of a new namespace.
func gangClaims(t *testing.T) dynamic.ResourceInterface {
	t.Helper()
	namespace := newNamespace(t)
	client, err := dynamic.NewForConfig(cluster.ConfigFor(cluster.AdminToken()))
	if err != nil {
		t.Fatal(err)
	}
	claims := client.Resource(v1alpha1.GroupVersion.WithResource("gangclaims")).Namespace(namespace)
	// The API server serves a new CRD a moment after it is written.
	eventually(t, "GangClaims are served", func() error {
		_, err := claims.List(t.Context(), metav1.ListOptions{})
		return err
	})
	return claims
}

// newNamespace makes a namespace for the test.
func newNamespace(t *testing.T) string {
	t.Helper()
	name := dns(t.Name())
	name = strings.TrimRight(name[:min(len(name), 50)], "-") + fmt.Sprintf("-%d", nodes.Add(1))
	if err := cluster.CreateNamespace(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return name
}

// gangClaimObject is a valid GangClaim with some fields of its spec changed (JSON), as a user writes it.
func gangClaimObject(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	fields := map[string]any{}
	if err := json.Unmarshal([]byte(`{"members": 2, "devicesPerMember": 4}`), &fields); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(spec), &fields); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
	object.SetAPIVersion(v1alpha1.APIVersion)
	object.SetKind(v1alpha1.GangClaimKind)
	object.SetName(name)
	return object
}

// wantError checks that an error has all the parts; none mean that there must be none.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if len(parts) == 0 {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	if err == nil {
		t.Errorf("accepted, want it refused with %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("refused with %q, want it to contain %q", err, part)
		}
	}
}

func TestTheAPIServerJudgesGangClaims(t *testing.T) {
	claims := gangClaims(t)
	long := strings.Repeat("a", 10240)
	for name, tc := range map[string]struct {
		spec string
		want []string // parts of the answer: the field and the fix; none: accepted
	}{
		"numbers alone":                  {`{}`, nil},
		"no members":                     {`{"members": null}`, []string{"spec.members", "Required"}},
		"members below 1":                {`{"members": 0}`, []string{"spec.members", "greater than or equal to 1"}},
		"the most members":               {`{"members": 256}`, nil},
		"more members":                   {`{"members": 257}`, []string{"spec.members", "less than or equal to 256"}},
		"no devicesPerMember":            {`{"devicesPerMember": null}`, []string{"spec.devicesPerMember", "Required"}},
		"devicesPerMember below 1":       {`{"devicesPerMember": 0}`, []string{"spec.devicesPerMember", "greater than or equal to 1"}},
		"the most devicesPerMember":      {`{"devicesPerMember": 32}`, nil},
		"more devicesPerMember":          {`{"devicesPerMember": 33}`, []string{"spec.devicesPerMember", "less than or equal to 32"}},
		"another class":                  {`{"deviceClassName": "nvlink.gpu.switchyard.dev"}`, nil},
		"an empty class":                 {`{"deviceClassName": ""}`, []string{"spec.deviceClassName", "name of a DeviceClass"}},
		"no name of a class":             {`{"deviceClassName": "My GPUs"}`, []string{"spec.deviceClassName", "name of a DeviceClass"}},
		"a priority class":               {`{"priorityClassName": "high"}`, nil},
		"no name of a priority class":    {`{"priorityClassName": "High!"}`, []string{"spec.priorityClassName", "name of a PriorityClass"}},
		"a selector":                     {`{"selectors": [{"cel": {"expression": "true"}}]}`, nil},
		"31 selectors":                   {`{"selectors": [` + strings.Repeat(`{"cel": {"expression": "true"}},`, 30) + `{"cel": {"expression": "true"}}]}`, nil},
		"32 selectors":                   {`{"selectors": [` + strings.Repeat(`{"cel": {"expression": "true"}},`, 31) + `{"cel": {"expression": "true"}}]}`, []string{"spec.selectors", "at most 31"}},
		"a selector without cel":         {`{"selectors": [{}]}`, []string{"spec.selectors[0]", "field cel"}},
		"an empty expression":            {`{"selectors": [{"cel": {"expression": ""}}]}`, []string{"spec.selectors[0].cel.expression", "1 to 10240"}},
		"the longest expression":         {`{"selectors": [{"cel": {"expression": "` + long + `"}}]}`, nil},
		"a longer expression":            {`{"selectors": [{"cel": {"expression": "` + long + `a"}}]}`, []string{"spec.selectors[0].cel.expression", "split a longer one"}},
		"no member scope":                {`{"topology": {"member": "Rack"}}`, []string{"spec.topology.member", "NVSwitchDomain"}},
		"every scope":                    {`{"topology": {"member": "PCIeRoot", "gang": "NVSwitchDomain", "mode": "Preferred"}}`, nil},
		"no gang scope":                  {`{"topology": {"gang": "PCIeRoot"}}`, []string{"spec.topology.gang", "Any"}},
		"no mode":                        {`{"topology": {"mode": "required"}}`, []string{"spec.topology.mode", "Required"}},
		"a toleration":                   {`{"tolerations": [{"key": "example.com/a", "operator": "Equal", "value": "b", "effect": "NoExecute"}]}`, nil},
		"a toleration of every taint":    {`{"tolerations": [{"operator": "Exists"}]}`, []string{"spec.tolerations[0].key", "switchyard.dev/reserved", "name the key"}},
		"an empty key":                   {`{"tolerations": [{"key": "", "operator": "Exists"}]}`, []string{"spec.tolerations[0].key", "name the key"}},
		"another gang's fence":           {`{"tolerations": [{"key": "a", "operator": "Exists"}, {"key": "switchyard.dev/reserved", "operator": "Exists"}]}`, []string{"spec.tolerations[1].key", "remove the toleration"}},
		"another gang's fence by value":  {`{"tolerations": [{"key": "switchyard.dev/reserved", "value": "b"}]}`, []string{"spec.tolerations[0].key", "remove the toleration"}},
		"no operator":                    {`{"tolerations": [{"key": "a", "operator": "In"}]}`, []string{"spec.tolerations[0].operator", "Exists or Equal"}},
		"Exists with a value":            {`{"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}`, []string{"spec.tolerations[0].value", "remove value"}},
		"no effect":                      {`{"tolerations": [{"key": "a", "effect": "PreferNoSchedule"}]}`, []string{"spec.tolerations[0].effect", "NoSchedule, NoExecute"}},
		"16 tolerations":                 {`{"tolerations": [` + strings.Repeat(`{"key": "a"},`, 15) + `{"key": "a"}]}`, []string{"spec.tolerations", "at most 15"}},
		"15 tolerations":                 {`{"tolerations": [` + strings.Repeat(`{"key": "a"},`, 14) + `{"key": "a"}]}`, nil},
		"configuration":                  {`{"config": [{"opaque": {"driver": "gpu.switchyard.dev", "parameters": {"any": {"thing": 1}}}}]}`, nil},
		"configuration of a request":     {`{"config": [{"requests": ["gpu"], "opaque": {"driver": "a", "parameters": {}}}]}`, []string{"spec.config[0].requests", "must be empty"}},
		"an empty list of requests":      {`{"config": [{"requests": [], "opaque": {"driver": "a", "parameters": {}}}]}`, nil},
		"configuration without anything": {`{"config": [{}]}`, []string{"spec.config[0]", "field opaque"}},
		"configuration of no driver":     {`{"config": [{"opaque": {"driver": "", "parameters": {}}}]}`, []string{"spec.config[0].opaque.driver", "gpu.switchyard.dev"}},
		"configuration not an object":    {`{"config": [{"opaque": {"driver": "a", "parameters": "MPS"}}]}`, []string{"spec.config[0].opaque.parameters", "object"}},
		"no timeout":                     {`{"schedulingTimeout": "0s"}`, nil},
		"a mixed timeout":                {`{"schedulingTimeout": "1h2m3.5s"}`, nil},
		"the longest timeout":            {`{"schedulingTimeout": "99999h9999999m999999999s999999999ms"}`, nil},
		"a negative timeout":             {`{"schedulingTimeout": "-1s"}`, []string{"spec.schedulingTimeout", "0s or more"}},
		"a timeout without a unit":       {`{"schedulingTimeout": "90"}`, []string{"spec.schedulingTimeout", "such as 90s"}},
		"a timeout in seconds as number": {`{"schedulingTimeout": 90}`, []string{"spec.schedulingTimeout", "string"}},
		"an empty timeout":               {`{"schedulingTimeout": ""}`, []string{"spec.schedulingTimeout", "0s or more"}},
		"a timeout in days":              {`{"schedulingTimeout": "1d"}`, []string{"spec.schedulingTimeout", "hours, minutes and seconds"}},
		"a timeout beyond int64":         {`{"schedulingTimeout": "9999999h"}`, []string{"spec.schedulingTimeout", "0s or more"}},
		"no grace":                       {`{"restartGracePeriod": "0s"}`, nil},
		"the longest grace":              {`{"restartGracePeriod": "1h"}`, nil},
		"a grace that is too long":       {`{"restartGracePeriod": "1h0m1s"}`, []string{"spec.restartGracePeriod", "set it to 1h or less"}},
		"a negative grace":               {`{"restartGracePeriod": "-1s"}`, []string{"spec.restartGracePeriod", "0s or more"}},
		"to plan moves":                  {`{"defragmentation": "Plan"}`, nil},
		"no defragmentation policy":      {`{"defragmentation": "Always"}`, []string{"spec.defragmentation", "Never"}},
		"an unknown field":               {`{"member": 2}`, []string{`unknown field "spec.member"`}},
	} {
		t.Run(name, func(t *testing.T) {
			created, err := claims.Create(t.Context(), gangClaimObject(t, "gang", tc.spec), metav1.CreateOptions{
				DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
			})
			wantError(t, err, tc.want...)
			if err != nil {
				return
			}
			// What the API server accepts the controller must be able to read: one object that it cannot
			// would keep it from listing any.
			var typed v1alpha1.GangClaim
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(created.Object, &typed); err != nil {
				t.Errorf("accepted, but not readable: %v", err)
			}
		})
	}
}

func TestTheNameOfAGangClaimFitsIntoALabel(t *testing.T) {
	claims := gangClaims(t)
	for name, want := range map[string][]string{
		strings.Repeat("a", 63):           nil,
		"llama.tp-4":                      nil,
		strings.Repeat("a", 64):           {"metadata.name must be at most 63 characters"},
		"Llama":                           {"metadata.name", "RFC 1123"},
		strings.Repeat("a.", 31) + "a.aa": {"metadata.name must be at most 63 characters"},
	} {
		_, err := claims.Create(t.Context(), gangClaimObject(t, name, `{}`), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		wantError(t, err, want...)
	}
}

func TestAGangClaimIsDefaulted(t *testing.T) {
	created, err := gangClaims(t).Create(t.Context(), gangClaimObject(t, "gang", `{"topology": {"gang": "Node"}}`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(created.Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"defragmentation":"Never","deviceClassName":"gpu.switchyard.dev","devicesPerMember":4,"members":2,` +
		`"restartGracePeriod":"5m","schedulingTimeout":"10m","topology":{"gang":"Node","member":"NVSwitchDomain","mode":"Required"}}`
	if string(got) != want {
		t.Errorf("spec is\n%s, want\n%s", got, want)
	}
}

// planStatus is a status with a plan.
const planStatus = `{"status": {"ready": "1/2", "domains": "node-b.0,node-b.1", "conditions": [
	{"type": "Running", "status": "False", "reason": "Starting", "message": "1 of 2 members run", "lastTransitionTime": "2026-01-01T00:00:00Z"},
	{"type": "Planned", "status": "True", "reason": "Planned", "message": "on node-b", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
	"plan": {"hash": "0123456789abcdef", "attempt": 1, "members": 2, "memberScope": "NVSwitchDomain", "gangScope": "Any",
	"placements": [], "step": "Starting", "stepSince": "2026-01-01T00:00:00.000000Z"}}}`

func TestWhatAPlanFollowsFromIsFixedWhileThereIsOne(t *testing.T) {
	claims := gangClaims(t)
	const before = `{"members": 3, "selectors": [{"cel": {"expression": "true"}}], "tolerations": [{"key": "a"}],
		"config": [{"opaque": {"driver": "a", "parameters": {"deep": {"value": 1}}}}]}`
	for name, tc := range map[string]struct {
		patch string // of the spec
		fixed string // the field; empty: it can change
	}{
		"members":            {`{"members": 4}`, "members"},
		"deviceClassName":    {`{"deviceClassName": "b"}`, "deviceClassName"},
		"devicesPerMember":   {`{"devicesPerMember": 2}`, "devicesPerMember"},
		"another selector":   {`{"selectors": [{"cel": {"expression": "false"}}]}`, "selectors"},
		"no selectors":       {`{"selectors": null}`, "selectors"},
		"member scope":       {`{"topology": {"member": "Node"}}`, "topology"},
		"gang scope":         {`{"topology": {"gang": "Node"}}`, "topology"},
		"mode":               {`{"topology": {"mode": "Preferred"}}`, "topology"},
		"another toleration": {`{"tolerations": [{"key": "b"}]}`, "tolerations"},
		"no tolerations":     {`{"tolerations": []}`, "tolerations"},
		"a parameter":        {`{"config": [{"opaque": {"driver": "a", "parameters": {"deep": {"value": 2}}}}]}`, "config"},
		"no config":          {`{"config": null}`, "config"},
		"priority":           {`{"priorityClassName": "high"}`, ""},
		"timeout":            {`{"schedulingTimeout": "1m"}`, ""},
		"grace":              {`{"restartGracePeriod": "1m"}`, ""},
		"defragmentation":    {`{"defragmentation": "Evict"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			object, err := claims.Create(t.Context(), gangClaimObject(t, dns(name), before), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			patch := func(dryRun []string, what string, subresources ...string) error {
				_, err := claims.Patch(t.Context(), object.GetName(), types.MergePatchType, []byte(what), metav1.PatchOptions{DryRun: dryRun}, subresources...)
				return err
			}
			change := `{"spec": ` + tc.patch + `}`
			wantError(t, patch([]string{metav1.DryRunAll}, change)) // no plan yet
			if err := patch(nil, planStatus, "status"); err != nil {
				t.Fatal(err)
			}
			if tc.fixed == "" {
				wantError(t, patch(nil, change))
				return
			}
			wantError(t, patch(nil, change), "spec."+tc.fixed+": Forbidden: "+tc.fixed+" cannot change while there is a plan", "delete the GangClaim")
			// A plan that is taken back binds no longer.
			if err := patch(nil, `{"status": {"plan": null}}`, "status"); err != nil {
				t.Fatal(err)
			}
			wantError(t, patch(nil, change))
		})
	}
}

// Lists that a client leaves out and lists that it sends empty are the same to a plan: typed clients drop
// what is empty.
func TestAnEmptyListIsNoChange(t *testing.T) {
	claims := gangClaims(t)
	if _, err := claims.Create(t.Context(), gangClaimObject(t, "gang", `{"selectors": [], "config": []}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, patch := range []struct{ what, subresource string }{
		{planStatus, "status"},
		{`{"spec": {"selectors": null, "config": null, "tolerations": []}}`, ""},
	} {
		var subresources []string
		if patch.subresource != "" {
			subresources = append(subresources, patch.subresource)
		}
		_, err := claims.Patch(t.Context(), "gang", types.MergePatchType, []byte(patch.what), metav1.PatchOptions{}, subresources...)
		wantError(t, err)
	}
}

func TestKubectlGetShowsHowAGangStands(t *testing.T) {
	claims := gangClaims(t)
	object, err := claims.Create(t.Context(), gangClaimObject(t, "llama-tp4", `{}`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claims.Patch(t.Context(), "llama-tp4", types.MergePatchType, []byte(planStatus), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	raw, err := cluster.Client().Discovery().RESTClient().Get().
		AbsPath("apis", v1alpha1.GroupName, v1alpha1.Version, "namespaces", object.GetNamespace(), "gangclaims").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("the table has %d rows, want 1", len(table.Rows))
	}
	got, wide := map[string]string{}, map[string]bool{}
	for i, column := range table.ColumnDefinitions {
		got[column.Name] = fmt.Sprint(table.Rows[0].Cells[i])
		wide[column.Name] = column.Priority > 0
	}
	for column, want := range map[string]string{
		"Name": "llama-tp4", "Members": "2", "Per Member": "4", "Ready": "1/2",
		"Domains": "node-b.0,node-b.1", "Status": "Starting", "Planned": "on node-b",
	} {
		if got[column] != want {
			t.Errorf("column %q is %q, want %q", column, got[column], want)
		}
		if wantWide := column == "Planned"; wide[column] != wantWide {
			t.Errorf("column %q is shown with -o wide only: %t, want %t", column, wide[column], wantWide)
		}
	}
	if got["Age"] == "" || got["Age"] == "<unknown>" {
		t.Errorf("column Age is %q", got["Age"])
	}
}

func TestServerSideApplyKeepsWhatAnotherManagerOwns(t *testing.T) {
	claims := gangClaims(t)
	apply := func(manager, spec string) error {
		object := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(`{"apiVersion": "`+v1alpha1.APIVersion+`", "kind": "GangClaim", "metadata": {"name": "gang"}, "spec": `+spec+`}`), object); err != nil {
			t.Fatal(err)
		}
		data, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		_, err = claims.Patch(t.Context(), "gang", types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: manager})
		return err
	}
	user := `{"members": 2, "devicesPerMember": 4, "topology": {"member": "NVSwitchDomain"}, "selectors": [{"cel": {"expression": "true"}}]}`
	wantError(t, apply("user", user))
	wantError(t, apply("queue", `{"priorityClassName": "high", "topology": {"mode": "Preferred"}}`))
	// Applying again takes nothing from the other.
	wantError(t, apply("user", user))
	// Two managers of one field, and of one list that has one owner as a whole.
	wantError(t, apply("queue", `{"members": 3}`), "conflict", ".spec.members")
	wantError(t, apply("queue", `{"selectors": [{"cel": {"expression": "false"}}]}`), "conflict", ".spec.selectors")

	// Conditions are merged by their type.
	for i, manager := range []string{"controller", "other"} {
		status := fmt.Sprintf(`{"apiVersion": %q, "kind": "GangClaim", "metadata": {"name": "gang"}, "status": {"conditions": [
			{"type": "Type%d", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`, v1alpha1.APIVersion, i)
		_, err := claims.Patch(t.Context(), "gang", types.ApplyPatchType, []byte(status), metav1.PatchOptions{FieldManager: manager}, "status")
		wantError(t, err)
	}

	object, err := claims.Get(t.Context(), "gang", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var claim v1alpha1.GangClaim
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &claim); err != nil {
		t.Fatal(err)
	}
	wantTopology := v1alpha1.GangTopology{Member: v1alpha1.MemberNVSwitchDomain, Gang: v1alpha1.GangAny, Mode: v1alpha1.TopologyPreferred}
	if claim.Spec.Members != 2 || claim.Spec.PriorityClassName != "high" || claim.Spec.Topology != wantTopology || len(claim.Spec.Selectors) != 1 {
		t.Errorf("spec is %+v, want what both managers applied", claim.Spec)
	}
	if len(claim.Status.Conditions) != 2 {
		t.Errorf("conditions are %+v, want those of both managers", claim.Status.Conditions)
	}
	// A manager that gives a field up takes it away; the default comes back.
	wantError(t, apply("queue", `{}`))
	if object, err = claims.Get(t.Context(), "gang", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if mode, _, _ := unstructured.NestedString(object.Object, "spec", "topology", "mode"); mode != "Required" {
		t.Errorf("mode is %q, want the default", mode)
	}
}

// Who edits workloads writes GangClaims; their status, with the plan, is the controller's.
func TestUsersMayNotWriteTheStatusOfAGangClaim(t *testing.T) {
	claims := gangClaims(t)
	object, err := claims.Create(t.Context(), gangClaimObject(t, "gang", `{}`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	user := asUser(t, object.GetNamespace(), "switchyard-gangclaims-edit")
	client, err := dynamic.NewForConfig(user)
	if err != nil {
		t.Fatal(err)
	}
	theirs := client.Resource(v1alpha1.GroupVersion.WithResource("gangclaims")).Namespace(object.GetNamespace())
	// The API server learns of new role bindings a moment after they are written.
	eventually(t, "a user changes the spec", func() error {
		_, err := theirs.Patch(t.Context(), "gang", types.MergePatchType, []byte(`{"spec": {"members": 3}}`), metav1.PatchOptions{})
		return err
	})
	if _, err := theirs.Patch(t.Context(), "gang", types.MergePatchType, []byte(planStatus), metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) {
		t.Errorf("change the status: %v, want it forbidden", err)
	}
	viewer, err := dynamic.NewForConfig(asUser(t, object.GetNamespace(), "switchyard-gangclaims-view"))
	if err != nil {
		t.Fatal(err)
	}
	seen := viewer.Resource(v1alpha1.GroupVersion.WithResource("gangclaims")).Namespace(object.GetNamespace())
	eventually(t, "a viewer lists", func() error {
		_, err := seen.List(t.Context(), metav1.ListOptions{})
		return err
	})
	if err := seen.Delete(t.Context(), "gang", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete as a viewer: %v, want it forbidden", err)
	}
}
