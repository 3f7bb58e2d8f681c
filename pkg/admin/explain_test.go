package admin_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/routes"
)

func TestNothingIsExplainedBeforeThereIsTruth(t *testing.T) {
	s := newServerOf(t, untold{}, ready)
	r := httptest.NewRequest(http.MethodGet, "/debug/explain?host=a.b&namespace=web", nil)
	r.RemoteAddr = "127.0.0.1:1234"
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s, want 503: what is not known yet is not \"no such service\"", w.Code, w.Body)
	}
}

type untold struct{ nothing }

func (untold) Plans(mesh.View, string) ([]*routes.Plan, bool) { return nil, false }
