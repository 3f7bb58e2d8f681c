package manifests

import (
	"context"
	"os"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

const crdFile = "../../manifests/base/crd.yaml"

// crd is the CRD as the API server has it after defaulting.
func crd(tb testing.TB) *apiextensionsv1.CustomResourceDefinition {
	tb.Helper()
	data, err := os.ReadFile(crdFile)
	if err != nil {
		tb.Fatal(err)
	}
	out := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, out); err != nil {
		tb.Fatalf("%s: %v", crdFile, err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(out)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&out.Spec)
	return out
}

func internal(tb testing.TB, c *apiextensionsv1.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	tb.Helper()
	out := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(c, out, nil); err != nil {
		tb.Fatal(err)
	}
	return out
}

// admission judges objects as the API server does when they are created.
type admission struct {
	structural *schema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

func newAdmission(tb testing.TB) *admission {
	tb.Helper()
	version := crd(tb).Spec.Versions[0]
	props := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, props, nil); err != nil {
		tb.Fatal(err)
	}
	structural, err := schema.NewStructural(props)
	if err != nil {
		tb.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		tb.Fatal(err)
	}
	return &admission{structural: structural, schema: validator, rules: cel.NewValidator(structural, true, celconfig.PerCallLimit)}
}

// judge returns why the API server would refuse an object, which it leaves alone, and which fields of it
// would be pruned.
func (a *admission) judge(object map[string]any) (refused field.ErrorList, pruned []string) {
	object = runtime.DeepCopyJSON(object)
	pruned = pruning.PruneWithOptions(object, a.structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	refused = validation.ValidateCustomResource(nil, object, a.schema)
	refused = append(refused, listtype.ValidateListSetsAndMaps(nil, a.structural, object)...)
	if len(refused) == 0 { // as there: rules are for objects of the right types
		refused, _ = a.rules.Validate(context.Background(), nil, a.structural, object, nil, celconfig.RuntimeCELCostBudget)
	}
	return refused, pruned
}
