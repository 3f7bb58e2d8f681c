package manifests

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// flags are the flags of the container's command, which must be serve.
func flags(t *testing.T, pod *corev1.PodTemplateSpec) map[string]string {
	t.Helper()
	args := pod.Spec.Containers[0].Args
	if len(args) == 0 || args[0] != "serve" || pod.Spec.Containers[0].Command != nil {
		t.Fatalf("the command is %v %v, want the image's with serve", pod.Spec.Containers[0].Command, args)
	}
	out := map[string]string{}
	for _, arg := range args[1:] {
		name, value, _ := strings.Cut(arg, "=")
		out[name] = value
	}
	return out
}

// port is the container port of a name.
func port(t *testing.T, pod *corev1.PodTemplateSpec, name string) int32 {
	t.Helper()
	for _, p := range pod.Spec.Containers[0].Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	t.Fatalf("the container has no port %s", name)
	return 0
}

func deployed(t *testing.T) (cluster, *corev1.PodTemplateSpec) {
	t.Helper()
	c := build(t, root)
	return c, &get[*appsv1.Deployment](t, c, "Deployment metards").Spec.Template
}

func TestTheDeploymentsFlagsAreFlagsOfServe(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, serve, found := strings.Cut(string(text), "\n## metards serve\n")
	if !found {
		t.Fatal("docs/cli.md has no section on serve")
	}
	serve, _, _ = strings.Cut(serve, "\n## ")
	_, pod := deployed(t)
	for name := range flags(t, pod) {
		if !strings.Contains(serve, "`"+name+"`") {
			t.Errorf("serve has no flag %s", name)
		}
	}
}

func TestPortsAgree(t *testing.T) {
	c, pod := deployed(t)
	f := flags(t, pod)
	if got := fmt.Sprintf(":%d", port(t, pod, "grpc-xds")); got != f["--listen"] {
		t.Errorf("the container's port grpc-xds is %s, --listen %s", got, f["--listen"])
	}
	admin := port(t, pod, "http-admin")
	if got := fmt.Sprintf(":%d", admin); got != f["--admin-listen"] {
		t.Errorf("the container's port http-admin is %s, --admin-listen %s", got, f["--admin-listen"])
	}
	s := get[*corev1.Service](t, c, "Service metards")
	if p := s.Spec.Ports; len(p) != 1 || p[0].Name != "grpc-xds" || p[0].Port != 15010 || port(t, pod, p[0].TargetPort.String()) != p[0].Port {
		t.Errorf("the Service's ports are %v", p)
	}
	for path, probe := range map[string]*corev1.Probe{"/livez": pod.Spec.Containers[0].LivenessProbe, "/readyz": pod.Spec.Containers[0].ReadinessProbe} {
		if probe.HTTPGet.Path != path || port(t, pod, probe.HTTPGet.Port.String()) != admin {
			t.Errorf("the probe of %s is %+v", path, probe.HTTPGet)
		}
	}
	var in, out []string
	policy := get[*networkingv1.NetworkPolicy](t, c, "NetworkPolicy metards")
	for _, rule := range policy.Spec.Ingress {
		for _, p := range rule.Ports {
			in = append(in, ":"+p.Port.String())
		}
	}
	for _, rule := range policy.Spec.Egress {
		for _, p := range rule.Ports {
			out = append(out, ":"+p.Port.String())
		}
	}
	if want := []string{f["--listen"], f["--admin-listen"]}; !slices.Equal(in, want) {
		t.Errorf("the NetworkPolicy lets in %v, want %v", in, want)
	}
	_, istiod, _ := strings.Cut(f["--istiod"], ":")
	if !slices.Contains(out, ":"+istiod) {
		t.Errorf("the NetworkPolicy lets out %v, without istiod's %s", out, istiod)
	}
	if policy.Spec.Ingress[0].From != nil {
		t.Errorf("only %v of the mesh may connect", policy.Spec.Ingress[0].From)
	}
}

func TestSelectorsSelectThePods(t *testing.T) {
	c, pod := deployed(t)
	of := labels.Set(pod.Labels)
	for name, selector := range map[string]map[string]string{
		"Deployment":    get[*appsv1.Deployment](t, c, "Deployment metards").Spec.Selector.MatchLabels,
		"Service":       get[*corev1.Service](t, c, "Service metards").Spec.Selector,
		"budget":        get[*policyv1.PodDisruptionBudget](t, c, "PodDisruptionBudget metards").Spec.Selector.MatchLabels,
		"NetworkPolicy": get[*networkingv1.NetworkPolicy](t, c, "NetworkPolicy metards").Spec.PodSelector.MatchLabels,
	} {
		if len(selector) == 0 || !labels.SelectorFromSet(selector).Matches(of) {
			t.Errorf("the %s selects %v, the pods have %v", name, selector, pod.Labels)
		}
	}
	for _, s := range pod.Spec.TopologySpreadConstraints {
		if !labels.SelectorFromSet(s.LabelSelector.MatchLabels).Matches(of) {
			t.Errorf("the pods are spread by %v", s.LabelSelector.MatchLabels)
		}
	}
	if of["sidecar.istio.io/inject"] != "false" {
		t.Error("the pods would get a sidecar")
	}
}

func TestEveryFileFlagLiesInAMountThatProvidesIt(t *testing.T) {
	_, pod := deployed(t)
	f := flags(t, pod)
	for flag, want := range map[string]struct {
		file     string // as the volume has it
		writable bool
	}{
		"--token": {"token audience istio-ca expires 43200 istio-token", false}, "--root": {"configmap istio-ca-root-cert root-cert.pem", false},
		"--state-dir": {"emptydir", true},
	} {
		dir, file := path.Split(f[flag])
		if want.writable {
			dir, file = f[flag], ""
		}
		mounts := pod.Spec.Containers[0].VolumeMounts
		i := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == path.Clean(dir) })
		if i < 0 {
			t.Errorf("%s=%s lies in no mount", flag, f[flag])
			continue
		}
		got := strings.TrimSpace(provides(t, pod, mounts[i].Name) + " " + file)
		if got != want.file || mounts[i].ReadOnly == want.writable || mounts[i].SubPath != "" {
			t.Errorf("%s=%s is %s (read-only %t), want %s", flag, f[flag], got, mounts[i].ReadOnly, want.file)
		}
	}
}

// provides says what a volume of a pod is.
func provides(t *testing.T, pod *corev1.PodTemplateSpec, name string) string {
	t.Helper()
	i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if i < 0 {
		t.Fatalf("there is no volume %s", name)
	}
	switch v := pod.Spec.Volumes[i]; {
	case v.EmptyDir != nil:
		return "emptydir"
	case v.ConfigMap != nil:
		return "configmap " + v.ConfigMap.Name
	case v.Secret != nil:
		return "secret " + v.Secret.SecretName
	default:
		token := v.Projected.Sources[0].ServiceAccountToken
		if token.Path != "istio-token" {
			return "token at " + token.Path
		}
		return fmt.Sprintf("token audience %s expires %d", token.Audience, *token.ExpirationSeconds)
	}
}

func TestThePodMayDoNothingThatItNeedNot(t *testing.T) {
	_, pod := deployed(t)
	p, c := pod.Spec.SecurityContext, pod.Spec.Containers[0].SecurityContext
	if !*p.RunAsNonRoot || *p.RunAsUser != 65532 || *p.RunAsGroup != 65532 || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod's security context is %v", p)
	}
	if *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || fmt.Sprint(c.Capabilities.Drop) != "[ALL]" || c.Capabilities.Add != nil {
		t.Errorf("the container's security context is %v", c)
	}
	if pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC {
		t.Error("the pod is in the host's namespaces")
	}
}

func TestThereIsTimeToStop(t *testing.T) {
	c, pod := deployed(t)
	grace, err := time.ParseDuration(flags(t, pod)["--grace-period"])
	if err != nil {
		t.Fatal(err)
	}
	if kill := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second; kill < grace+10*time.Second {
		t.Errorf("the pod is killed after %s, --grace-period is %s", kill, grace)
	}
	if n := *get[*appsv1.Deployment](t, c, "Deployment metards").Spec.Replicas; n != 2 {
		t.Errorf("%d replicas", n)
	}
}

func TestTheRightsAreTheseAndNoMore(t *testing.T) {
	c, pod := deployed(t)
	rights := func(rules []rbacv1.PolicyRule) string {
		var out []string
		for _, r := range rules {
			out = append(out, fmt.Sprint(r.APIGroups, r.Resources, r.ResourceNames, r.Verbs))
		}
		return strings.Join(out, "\n")
	}
	if got, want := rights(get[*rbacv1.ClusterRole](t, c, "ClusterRole metards").Rules), strings.Join([]string{
		"[metaprotocol.aeraki.io] [metarouters] [] [list watch]",
		"[metaprotocol.aeraki.io] [metarouters/status] [] [patch]",
		"[apiextensions.k8s.io] [customresourcedefinitions] [" + crd(t).Name + "] [get]",
	}, "\n"); got != want {
		t.Errorf("in the cluster it may\n%s\nwant\n%s", got, want)
	}
	if got, want := rights(get[*rbacv1.Role](t, c, "Role metards").Rules), strings.Join([]string{
		"[coordination.k8s.io] [leases] [] [create]", "[coordination.k8s.io] [leases] [metards] [get update]",
	}, "\n"); got != want {
		t.Errorf("in its namespace it may\n%s\nwant\n%s", got, want)
	}
	account := get[*corev1.ServiceAccount](t, c, "ServiceAccount metards")
	for _, b := range []struct {
		ref      rbacv1.RoleRef
		subjects []rbacv1.Subject
	}{
		{get[*rbacv1.ClusterRoleBinding](t, c, "ClusterRoleBinding metards").RoleRef, get[*rbacv1.ClusterRoleBinding](t, c, "ClusterRoleBinding metards").Subjects},
		{get[*rbacv1.RoleBinding](t, c, "RoleBinding metards").RoleRef, get[*rbacv1.RoleBinding](t, c, "RoleBinding metards").Subjects},
	} {
		if len(b.subjects) != 1 || b.subjects[0].Name != account.Name || b.subjects[0].Namespace != account.Namespace || c[b.ref.Kind+" "+b.ref.Name] == nil {
			t.Errorf("%v is bound to %v", b.ref, b.subjects)
		}
	}
	if pod.Spec.ServiceAccountName != account.Name || account.Namespace != "istio-system" {
		t.Errorf("the pods run as %s, the account is %s/%s", pod.Spec.ServiceAccountName, account.Namespace, account.Name)
	}
}

func TestAnotherRootNamespaceTakesTheRightsAlong(t *testing.T) {
	c := overlay(t, "mesh", everything)
	for _, s := range [][]rbacv1.Subject{
		get[*rbacv1.ClusterRoleBinding](t, c, "ClusterRoleBinding metards").Subjects, get[*rbacv1.RoleBinding](t, c, "RoleBinding metards").Subjects,
	} {
		if s[0].Namespace != "mesh" {
			t.Errorf("a right stays with %v", s)
		}
	}
}

func TestTheStateVolumeReplacesTheEmptyDirForEachReplica(t *testing.T) {
	c := overlay(t, "", everything, "state-volume", "aeraki-cutover")
	s := get[*appsv1.StatefulSet](t, c, "StatefulSet metards")
	if c["Deployment metards"] != nil {
		t.Error("the Deployment is still there")
	}
	claims := s.Spec.VolumeClaimTemplates
	if len(claims) != 1 || claims[0].Name != "state" || s.Spec.ServiceName != "metards" {
		t.Errorf("the claims are %v, of Service %s", claims, s.Spec.ServiceName)
	}
	if slices.ContainsFunc(s.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "state" }) {
		t.Error("the emptyDir is still there, beside the claim of its name")
	}
	if _, ok := flags(t, &s.Spec.Template)["--state-dir"]; !ok {
		t.Error("--state-dir is gone")
	}
}

func TestTheServiceMonitorFindsTheMetrics(t *testing.T) {
	c := overlay(t, "", everything, "service-monitor")
	s := get[*corev1.Service](t, c, "Service metards-monitoring")
	_, pod := deployed(t)
	if p := s.Spec.Ports; len(p) != 1 || port(t, pod, p[0].TargetPort.String()) != p[0].Port || !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
		t.Errorf("the Service is %+v", s.Spec)
	}
	monitor := fmt.Sprint(*get[*map[string]any](t, c, "ServiceMonitor metards"))
	for _, want := range []string{"port:" + s.Spec.Ports[0].Name, "path:/metrics", "app.kubernetes.io/component:" + s.Labels["app.kubernetes.io/component"]} {
		if !strings.Contains(monitor, want) {
			t.Errorf("the ServiceMonitor has no %s: %s", want, monitor)
		}
	}
}

func TestTheCutoverTellsBothServersApartByTheirPortNames(t *testing.T) {
	c := overlay(t, "", everything, "aeraki-cutover")
	s := get[*corev1.Service](t, c, "Service aeraki")
	pod := get[*appsv1.Deployment](t, c, "Deployment metards").Spec.Template
	if s.Namespace != "istio-system" || !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
		t.Errorf("Service %s/%s selects %v, metards has %v", s.Namespace, s.Name, s.Spec.Selector, pod.Labels)
	}
	aeraki, err := os.ReadFile(root + "/components/aeraki-cutover/aeraki-patch.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Spec.Ports {
		ours := slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool { return c.Name == p.TargetPort.StrVal })
		theirs := strings.Contains(string(aeraki), "name: "+p.TargetPort.StrVal+"\n")
		if errs := validation.IsValidPortName(p.TargetPort.StrVal); len(errs) > 0 {
			t.Errorf("port %d leads to %s: %v", p.Port, p.TargetPort.String(), errs)
		}
		if ours == theirs || ours != (p.Port == 15010) {
			t.Errorf("port %d: of metards %t, of Aeraki %t", p.Port, ours, theirs)
		}
	}
	for key, value := range s.Spec.Selector {
		if !strings.Contains(string(aeraki), fmt.Sprintf("%s: %q", key, value)) {
			t.Errorf("Aeraki's pods do not get the label %s=%s", key, value)
		}
	}
}
