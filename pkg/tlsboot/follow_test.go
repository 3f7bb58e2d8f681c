package tlsboot

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// These tests have a clock of their own, and say by hand when a directory changed.

type bubble struct {
	*site
	ca      *DevCA
	changed chan struct{}
}

func inBubble(t *testing.T, poll time.Duration, test func(*testing.T, *bubble)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ca := newCA(t)
		f := &bubble{site: newSite(t, ca), ca: ca, changed: make(chan struct{}, 1)}
		f.opts.Poll = poll
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.follower().follow(ctx, f.changed) }()
		synctest.Wait()
		test(t, f)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("follow returned %v", err)
		}
	})
}

// pass lets time pass, and then all that is due happen.
func (f *bubble) pass(d time.Duration) {
	<-time.After(d) // of the bubble's clock
	synctest.Wait()
}

func (f *bubble) notify() { signal(f.changed) }

func (f *bubble) serves(p *Pair) bool {
	return f.inForce.current.Load().Certificates[0].Leaf.Equal(p.TLS.Leaf)
}

func (f *bubble) wantAlarms(t *testing.T, what string, logged int, failing bool) {
	t.Helper()
	if got := f.log.count("level=ERROR"); got != logged {
		t.Errorf("%d alarms logged, want %d:\n%s", got, logged, f.log.text.String())
	}
	if got := testutil.ToFloat64(f.metrics.failures.WithLabelValues(what)); got != float64(logged) {
		t.Errorf("%v failures counted, want %d", got, logged)
	}
	want := 0.0
	if failing {
		want = 1
	}
	if got := testutil.ToFloat64(f.metrics.failing.WithLabelValues(what)); got != want {
		t.Errorf("failing is %v, want %v", got, want)
	}
}

func TestAFileIsReadWhenItsDirectoryIsQuiet(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, f *bubble) {
		next := issue(t, f.ca, IssueOptions{})
		write(t, f.cert, next.CertPEM)
		write(t, f.key, next.KeyPEM)
		f.notify()
		f.pass(quiet - time.Millisecond)
		if f.serves(next) {
			t.Error("served before the directory was quiet")
		}
		f.pass(time.Millisecond)
		if !f.serves(next) {
			t.Error("not served when the directory was quiet")
		}
	})
}

func TestADirectoryThatIsNeverQuietDelaysByASecondAtMost(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, f *bubble) {
		next := issue(t, f.ca, IssueOptions{})
		write(t, f.cert, next.CertPEM)
		write(t, f.key, next.KeyPEM)
		for range int(maxDelay/(quiet/2)) + 1 {
			f.notify()
			f.pass(quiet / 2)
		}
		if !f.serves(next) {
			t.Errorf("not served %v after the change", maxDelay)
		}
	})
}

func TestWithoutNotificationsPollingFindsTheChange(t *testing.T) {
	inBubble(t, 10*time.Second, func(t *testing.T, f *bubble) {
		next := issue(t, f.ca, IssueOptions{})
		write(t, f.cert, next.CertPEM)
		write(t, f.key, next.KeyPEM)
		f.pass(10 * time.Second)
		if !f.serves(next) {
			t.Error("not served after a poll")
		}
	})
}

func TestAPairWrittenInTwoStepsIsNoAlarm(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, f *bubble) {
		first, next := f.inForce.certificate().Leaf, issue(t, f.ca, IssueOptions{})
		write(t, f.cert, next.CertPEM)
		f.notify()
		f.pass(500 * time.Millisecond)
		if !f.inForce.current.Load().Certificates[0].Leaf.Equal(first) {
			t.Error("the old pair is not in force between the two steps")
		}
		write(t, f.key, next.KeyPEM)
		f.notify()
		f.pass(5 * time.Second)
		if !f.serves(next) {
			t.Error("the new pair is not served")
		}
		f.wantAlarms(t, whatCertificate, 0, false)
	})
}

func TestAPairThatNeverFitsIsOneAlarmUntilItDoes(t *testing.T) {
	inBubble(t, 10*time.Second, func(t *testing.T, f *bubble) {
		next := issue(t, f.ca, IssueOptions{})
		write(t, f.cert, next.CertPEM)
		f.notify()
		f.pass(time.Minute)
		f.wantAlarms(t, whatCertificate, 1, true)
		if f.serves(next) {
			t.Error("a pair that does not fit is served")
		}
		write(t, f.key, next.KeyPEM)
		f.notify()
		f.pass(time.Second)
		if !f.serves(next) {
			t.Error("the new pair is not served")
		}
		f.wantAlarms(t, whatCertificate, 1, false)
		if f.log.count("usable again") != 1 {
			t.Error("the end of the alarm is not logged once")
		}
	})
}

func TestEachDistinctFailureIsLoggedOnce(t *testing.T) {
	inBubble(t, 10*time.Second, func(t *testing.T, f *bubble) {
		whole := f.ca.RootPEM()
		write(t, f.root, whole[:100])
		f.pass(time.Minute)
		f.wantAlarms(t, whatRoots, 1, true)
		if err := os.Remove(f.root); err != nil {
			t.Fatal(err)
		}
		f.pass(time.Minute)
		f.wantAlarms(t, whatRoots, 2, true)
		write(t, f.root, whole)
		f.pass(time.Minute)
		f.wantAlarms(t, whatRoots, 2, false)
	})
}

func TestBadRootsKeepTheOldRootsAndANewCertificateStillComes(t *testing.T) {
	for name, spoil := range map[string]func(whole []byte) []byte{
		"empty":                    func([]byte) []byte { return nil },
		"truncated":                func(w []byte) []byte { return w[:len(w)-60] },
		"one broken block":         func(w []byte) []byte { w[len(w)/4] = '!'; return w },
		"not PEM":                  func([]byte) []byte { return []byte("hello\n") },
		"a leaf, not a root":       nil,
		"an end without beginning": func(w []byte) []byte { return append(w, "-----END CERTIFICATE-----\n"...) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, time.Hour, func(t *testing.T, f *bubble) {
				old, next := f.trust.now.Load().own, issue(t, f.ca, IssueOptions{})
				bad := next.CertPEM
				if spoil != nil {
					bad = spoil(join(f.ca.RootPEM(), newCA(t).RootPEM()))
				}
				write(t, f.root, bad)
				write(t, f.key, next.KeyPEM)
				write(t, f.cert, next.CertPEM)
				f.notify()
				f.pass(10 * time.Second)
				f.wantAlarms(t, whatRoots, 1, true)
				if len(f.trust.now.Load().own) != 1 || !f.trust.now.Load().own[0].Equal(old[0]) {
					t.Error("the old roots are not in force")
				}
				if !f.serves(next) {
					t.Error("the new certificate waits for the roots")
				}
			})
		})
	}
}

func TestABadCertificateKeepsTheOldAndNewRootsStillCome(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, f *bubble) {
		other := newCA(t)
		write(t, f.cert, []byte("-----BEGIN CERTIFICATE-----\nMIIB"))
		write(t, f.root, f.ca.RootPEM(), other.RootPEM())
		f.notify()
		f.pass(10 * time.Second)
		f.wantAlarms(t, whatCertificate, 1, true)
		if len(f.trust.now.Load().own) != 2 {
			t.Errorf("%d roots in force, want 2", len(f.trust.now.Load().own))
		}
	})
}

func TestACertificateThatExpiresInForceIsAnAlarm(t *testing.T) {
	inBubble(t, 10*time.Minute, func(t *testing.T, f *bubble) {
		f.pass(devLeafLifetime - time.Minute)
		f.wantAlarms(t, whatCertificate, 0, false)
		f.pass(20 * time.Minute)
		f.wantAlarms(t, whatCertificate, 1, true)
	})
}

func TestUnchangedFilesLogNothing(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, f *bubble) {
		before := f.log.count("\n")
		f.notify()
		f.pass(time.Minute)
		if got := f.log.count("\n"); got != before {
			t.Errorf("%d lines logged", got-before)
		}
	})
}
