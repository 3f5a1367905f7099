// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"slices"
	"strings"
	"testing"
)

func TestReadNodes(t *testing.T) {
	const header = "sn,cpu_milli,memory_mib,gpu,model\n"
	for name, tc := range map[string]struct {
		in      string
		want    []Node
		wantErr string
	}{
		"columns as the traces have them":          {in: header + "a,64000,262144,2,P100\n", want: []Node{{"a", 64000, 262144, 2, "P100"}}},
		"columns in any order, others ignored":     {in: "model,gpu,zone,name,memory_mib,cpu_milli\nT4,1,z,a,2,1\n", want: []Node{{"a", 1, 2, 1, "T4"}}},
		"a byte order mark and spaces":             {in: "\ufeffsn, CPU_milli ,memory_mib,gpu,model\n a , 1,2 ,1,T4\n", want: []Node{{"a", 1, 2, 1, "T4"}}},
		"a byte order mark before a quote":         {in: "\ufeff\"sn\",cpu_milli,memory_mib,gpu,model\na,1,2,1,T4\n", want: []Node{{"a", 1, 2, 1, "T4"}}},
		"columns that are not separated by commas": {in: "sn;cpu_milli;gpu\n", wantErr: `it has ["sn;cpu_milli;gpu"], separated by commas`},
		"what would confuse a terminal is quoted":  {in: "\x1b[31msn\n", wantErr: `it has ["\x1b[31msn"]`},
		"Windows line ends":                        {in: strings.ReplaceAll(header+"a,1,2,1,T4\n", "\n", "\r\n"), want: []Node{{"a", 1, 2, 1, "T4"}}},
		"a node without GPUs needs no model":       {in: header + "a,1,2,0,\n", want: []Node{{"a", 1, 2, 0, ""}}},
		"an empty file":                            {in: "", wantErr: "the file is empty: its first line must be a header with the columns sn|name, cpu_milli"},
		"no node":                                  {in: header, wantErr: "there is none below the header"},
		"a column is missing":                      {in: "sn,cpu_milli,gpu,model\n", wantErr: "line 1: column memory_mib is missing: the header must have"},
		"a column twice":                           {in: "sn,gpu,gpu,cpu_milli,memory_mib,model\n", wantErr: `line 1, column 3: a second column "gpu": remove one`},
		"a comma is missing":                       {in: header + "a,1,2,1,T4\nb,1,2,1\n", wantErr: "line 3 has 4 columns, the header has 5"},
		"a quote does not end":                     {in: header + "\"a,1,2,1,T4\n", wantErr: "line"},
		"an empty cell":                            {in: header + "a,,2,1,T4\n", wantErr: "line 2, column 2 (cpu_milli): the cell is empty: write milli-CPUs, for example 64000"},
		"not a number":                             {in: header + "a,1,16Gi,1,T4\n", wantErr: `line 2, column 3 (memory_mib): "16Gi" is not a whole number: write MiB`},
		"a fraction":                               {in: header + "a,1.5,2,1,T4\n", wantErr: `line 2, column 2 (cpu_milli): "1.5" is not a whole number`},
		"negative":                                 {in: header + "a,-1,2,1,T4\n", wantErr: "column 2 (cpu_milli): -1 is not between 0 and"},
		"more than an int64 holds":                 {in: header + "a,99999999999999999999,2,1,T4\n", wantErr: "column 2 (cpu_milli): 99999999999999999999 is not between"},
		"too many GPUs":                            {in: header + "a,1,2,17,T4\n", wantErr: "line 2, column 4 (gpu): 17 is not between 0 and 16"},
		"a node with GPUs needs their model":       {in: header + "a,1,2,1,\n", wantErr: "line 2, column 5 (model): a node with GPUs needs their model"},
		"no name":                                  {in: header + ",1,2,1,T4\n", wantErr: "line 2, column 1 (sn|name): the name is empty"},
		"the same name twice":                      {in: header + "a,1,2,1,T4\nb,1,2,1,T4\na,1,2,1,T4\n", wantErr: `line 4, column 1 (sn|name): "a" is also on line 2`},
		"the first of several errors in a line":    {in: header + "a,x,y,1,T4\n", wantErr: "column 2 (cpu_milli)"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadNodes(strings.NewReader(tc.in))
			checkRead(t, got, tc.want, err, tc.wantErr)
		})
	}
}

func TestReadTasks(t *testing.T) {
	const header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
	for name, tc := range map[string]struct {
		in      string
		want    []Task
		wantErr string
	}{
		"without GPU, a part, whole ones": {
			in: header + "a,1,2,0,0,\nb,1,2,1,460,T4|P100\nc,1,2,8,1000,\n",
			want: []Task{
				{"a", Kind{1, 2, 0, 0, ""}},
				{"b", Kind{1, 2, 1, 460, "T4|P100"}},
				{"c", Kind{1, 2, 8, 1000, ""}},
			},
		},
		"gpu_spec is optional":               {in: "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,2,1,10\n", want: []Task{{"a", Kind{1, 2, 1, 10, ""}}}},
		"a model matters to GPU tasks only":  {in: header + "a,1,2,0,0,T4\n", want: []Task{{"a", Kind{1, 2, 0, 0, ""}}}},
		"an empty file":                      {in: "", wantErr: "the file is empty"},
		"no task":                            {in: header, wantErr: "read tasks: there is none below the header"},
		"a part of a GPU that is none":       {in: header + "a,1,2,0,500,\n", wantErr: "line 2, column 5 (gpu_milli): num_gpu is 0: write 0 here, or 1 in num_gpu"},
		"a GPU of which nothing is needed":   {in: header + "a,1,2,1,0,\n", wantErr: "line 2, column 5 (gpu_milli): num_gpu is not 0: write 1000"},
		"parts of several GPUs":              {in: header + "a,1,2,2,500,\n", wantErr: "line 2, column 5 (gpu_milli): only a task with num_gpu 1"},
		"more than a GPU of each":            {in: header + "a,1,2,1,1500,\n", wantErr: "line 2, column 5 (gpu_milli): 1500 is not between 0 and 1000"},
		"an empty cell":                      {in: header + "a,1,2,,0,\n", wantErr: "line 2, column 4 (num_gpu): the cell is empty: write the number of GPUs"},
		"an empty model name":                {in: header + "a,1,2,1,10,T4|\n", wantErr: "line 2, column 6 (gpu_spec): there is an empty name"},
		"the same name twice":                {in: header + "a,1,2,0,0,\na,1,2,0,0,\n", wantErr: `line 3, column 1 (name): "a" is also on line 2`},
		"the file of the nodes, by mistake":  {in: "sn,cpu_milli,memory_mib,gpu,model\na,1,2,1,T4\n", wantErr: "column name is missing"},
		"a line break within quotes is fine": {in: header + "\"a\nb\",1,2,1,10,\nc,1,2,x,10,\n", wantErr: "line 4, column 4 (num_gpu)"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadTasks(strings.NewReader(tc.in))
			checkRead(t, got, tc.want, err, tc.wantErr)
		})
	}
}

func checkRead[T comparable](t *testing.T, got, want []T, err error, wantErr string) {
	t.Helper()
	switch {
	case wantErr == "" && err != nil:
		t.Fatal(err)
	case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
		t.Fatalf("got error %v, want one with %q", err, wantErr)
	case wantErr == "" && !slices.Equal(got, want):
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func FuzzReadTasks(f *testing.F) {
	f.Add("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1,2,1,460,T4|P100\n")
	f.Add("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n\"a\n")
	f.Fuzz(func(t *testing.T, in string) {
		tasks, err := ReadTasks(strings.NewReader(in))
		if (err == nil) != (len(tasks) > 0) && err == nil {
			t.Fatal("neither tasks nor an error")
		}
		if err != nil {
			return
		}
		for _, task := range tasks {
			if task.Demand() < 0 || task.Demand() > MaxGPUs*Whole || task.Shared() && task.Milli == 0 || task.CPU < 0 {
				t.Errorf("task %+v is not valid", task)
			}
		}
	})
}

func FuzzReadNodes(f *testing.F) {
	f.Add("sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,P100\n")
	f.Add("\ufeffname,gpu\n,")
	f.Fuzz(func(t *testing.T, in string) {
		nodes, err := ReadNodes(strings.NewReader(in))
		if err != nil {
			return
		}
		if len(nodes) == 0 {
			t.Fatal("neither nodes nor an error")
		}
		for _, node := range nodes {
			if node.GPUs < 0 || node.GPUs > MaxGPUs || node.GPUs > 0 && node.Model == "" || node.CPU < 0 || node.Memory < 0 {
				t.Errorf("node %+v is not valid", node)
			}
		}
	})
}

func TestCheck(t *testing.T) {
	nodes := []Node{{"a", 1, 1, 2, "T4"}, {"b", 1, 1, 0, "none"}}
	gpu := Task{"job", Kind{GPUs: 1, Milli: 500}}
	many := slices.Repeat([]Node{{"c", 1, 1, 8, "T4"}}, 10_000)
	for name, tc := range map[string]struct {
		nodes   []Node
		tasks   []Task
		wantErr string
	}{
		"many tasks for many nodes":              {many, []Task{{"job", Kind{GPUs: 1, Milli: 21}}}, ""},
		"more tasks than fit into memory":        {many, []Task{{"job", Kind{GPUs: 1, Milli: 1}}}, "about 104000000 tasks have to arrive until they ask for 130 % of the nodes' GPUs, more than 5000000: take fewer nodes"},
		"mostly tasks without GPUs":              {many, append(slices.Repeat([]Task{{"none", Kind{}}}, 100), gpu), "about 21008000 tasks"},
		"each task is larger than the demand":    {nodes, []Task{{"job", Kind{GPUs: 16, Milli: Whole}}, {"none", Kind{}}}, "no task that asks for a GPU would arrive: each asks for more than 130 %"},
		"all is well":                            {nodes, []Task{gpu, {"job-2", Kind{GPUs: 1, Milli: 500, Spec: "T4"}}}, ""},
		"no node has a GPU":                      {nodes[1:], []Task{gpu}, "none of the 1 nodes has a GPU: column gpu"},
		"no task asks for a GPU":                 {nodes, []Task{{"job", Kind{CPU: 1}}}, "none of the 1 tasks asks for a GPU: column num_gpu"},
		"a model that no node has":               {nodes, []Task{{"job", Kind{GPUs: 1, Milli: 500, Spec: "T4|H100"}}}, `task job: gpu_spec "T4|H100": no node has GPU model "H100": the nodes have T4`},
		"a model of a node without GPUs is none": {nodes, []Task{{"job", Kind{GPUs: 1, Milli: 500, Spec: "none"}}}, `no node has GPU model "none"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(tc.nodes, tc.tasks, 130)
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("got %v, want %q", err, tc.wantErr)
			}
		})
	}
}

func TestModelsAreSortedAndDistinct(t *testing.T) {
	if got, want := (Kind{Spec: "V100M32|T4|V100M32"}).Models(), []string{"T4", "V100M32"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
