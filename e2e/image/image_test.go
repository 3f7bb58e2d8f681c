package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	archive    = "../../bin/metards-image.tar"
	deployment = "../../manifests/base/deployment.yaml"
)

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
}

// settings are those of an image's configuration.
type settings struct {
	Architecture string `json:"architecture"`
	Config       struct {
		User       string
		Entrypoint []string
		Cmd        []string
		Labels     map[string]string
	} `json:"config"`
}

// image is an unpacked image.
type image struct {
	settings
	files map[string]fs.FileMode // below root, with leading slashes, without directories
	root  string
}

// read unpacks the archive.
func read(t *testing.T) image {
	t.Helper()
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatalf("run make image first: %v", err)
	}
	blobs := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if blobs[path.Clean(header.Name)], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var manifest struct {
		Config descriptor   `json:"config"`
		Layers []descriptor `json:"layers"`
	}
	out := image{files: map[string]fs.FileMode{}, root: t.TempDir()}
	decode(t, blobs, descend(t, blobs, "index.json"), &manifest)
	decode(t, blobs, blob(manifest.Config), &out.settings)
	for _, layer := range manifest.Layers {
		out.unpack(t, blobs[blob(layer)])
	}
	return out
}

func blob(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }

func decode(t *testing.T, blobs map[string][]byte, name string, into any) {
	t.Helper()
	if err := json.Unmarshal(blobs[name], into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// descend follows indexes, each of one image, to the image's manifest.
func descend(t *testing.T, blobs map[string][]byte, name string) string {
	t.Helper()
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	decode(t, blobs, name, &index)
	if len(index.Manifests) == 0 {
		return name
	}
	return descend(t, blobs, blob(index.Manifests[0]))
}

func (i *image) unpack(t *testing.T, layer []byte) {
	t.Helper()
	var from io.Reader = bytes.NewReader(layer)
	if zipped, err := gzip.NewReader(bytes.NewReader(layer)); err == nil {
		from = zipped
	}
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(i.root, filepath.Clean("/"+header.Name))
		if header.FileInfo().IsDir() {
			err = os.MkdirAll(at, 0o755)
		} else {
			i.files[filepath.Clean("/"+header.Name)] = header.FileInfo().Mode()
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(at, content, header.FileInfo().Mode().Perm())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// pod is what the Deployment asks of the image.
type pod struct {
	SecurityContext struct {
		RunAsUser, RunAsGroup int
	} `json:"securityContext"`
	Containers []struct {
		Command []string `json:"command"`
		Args    []string `json:"args"`
	} `json:"containers"`
}

func expected(t *testing.T) pod {
	t.Helper()
	data, err := os.ReadFile(deployment)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Spec struct {
			Template struct {
				Spec pod `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d.Spec.Template.Spec
}

func TestTheImageIsOneExecutableFileAndNothingElse(t *testing.T) {
	i := read(t)
	if names := slices.Collect(maps.Keys(i.files)); !slices.Equal(names, []string{"/metards"}) {
		t.Errorf("its files are %v: only the binary belongs there, no shell, nothing to write to", names)
	}
	if mode := i.files["/metards"]; mode != 0o555 {
		t.Errorf("the binary's mode is %v", mode)
	}
	binary, err := elf.Open(filepath.Join(i.root, "metards"))
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the binary is not static")
		}
	}
}

func TestTheImageIsSetUpAsTheManifestsExpect(t *testing.T) {
	i, want := read(t), expected(t)
	if user := fmt.Sprintf("%d:%d", want.SecurityContext.RunAsUser, want.SecurityContext.RunAsGroup); i.Config.User != user || strings.HasPrefix(user, "0") {
		t.Errorf("it runs as %q, the Deployment as %s", i.Config.User, user)
	}
	if !slices.Equal(i.Config.Entrypoint, []string{"/metards"}) || i.Config.Cmd != nil || want.Containers[0].Command != nil {
		t.Errorf("it runs %v %v, the Deployment overrides it with %v", i.Config.Entrypoint, i.Config.Cmd, want.Containers[0].Command)
	}
	for _, name := range []string{"title", "description", "licenses", "version", "revision"} {
		if i.Config.Labels["org.opencontainers.image."+name] == "" {
			t.Errorf("it has no label %s", name)
		}
	}
}

// run runs the image's entry point with its file system and user, as far as this process may.
func (i *image) run(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.Command(filepath.Join(i.root, i.Config.Entrypoint[0]), args...)
	command.Env = []string{}
	if os.Geteuid() == 0 {
		command.Path, command.Dir = i.Config.Entrypoint[0], "/"
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: i.root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	}
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return string(out)
}

func TestItsBinaryRunsAndTellsTheVersionOfTheLabel(t *testing.T) {
	i := read(t)
	got := i.run(t, "version")
	if version := i.Config.Labels["org.opencontainers.image.version"]; !strings.HasPrefix(got, "metards "+version+" ") || !strings.Contains(got, "/"+i.Architecture) {
		t.Errorf("it says %q, its label %s, for %s", got, version, i.Architecture)
	}
}

func TestItsBinaryHasEveryFlagOfTheDeployment(t *testing.T) {
	i := read(t)
	args := expected(t).Containers[0].Args
	help := i.run(t, args[0], "--help")
	for _, arg := range args[1:] {
		name, _, _ := strings.Cut(arg, "=")
		if !strings.Contains(help, name+" ") {
			t.Errorf("it has no flag %s", name)
		}
	}
}
