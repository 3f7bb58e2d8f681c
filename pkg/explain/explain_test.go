package explain_test

import (
	"reflect"
	"testing"

	"github.com/metards/metards/pkg/explain"
	"github.com/metards/metards/pkg/mesh"
)

func TestAQuestionSurvivesItsWayAsURLParameters(t *testing.T) {
	for _, q := range []explain.Question{
		{Host: "orders.shop", View: mesh.View{Namespace: "web"}, Attributes: map[string]string{}},
		{Host: "orders.shop", Port: 20880, View: mesh.View{Namespace: "web", Gateway: true}, Attributes: map[string]string{"a": "b=c&d e", "Ä": ""}},
	} {
		got, err := explain.ParseQuery(q.Query())
		if err != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("%+v came back as %+v, error %v", q, got, err)
		}
	}
}
