package main

// Workers that take one lock in turn, and the judge who looks for two holders at once.

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// stay is a time during which one worker surely held the lock: from the reply of its acquire until it began
// to release, but no longer than its ttl after it asked.
type stay struct {
	from, to time.Time
	fence    int64 // 0 where it could not be read in time
}

// workers take the lock through all nodes until done says so. Errors are handed to onError: nil ends
// nothing, an error ends the run.
type workers struct {
	trial   *trial
	name    string
	ttl     time.Duration
	count   int
	onError func(error) error

	counter atomic.Int64 // added to by reading, pausing and writing, so that two holders lose an update
	mu      sync.Mutex
	stays   []stay
}

func (w *workers) run(ctx context.Context, done func() bool) error {
	errs := make(chan error, w.count)
	var group sync.WaitGroup
	for n := range w.count {
		l, err := w.trial.open(n, w.ttl)
		if err != nil {
			return err
		}
		group.Go(func() {
			defer l.close()
			for !done() && ctx.Err() == nil {
				err := w.once(ctx, l)
				if err == nil {
					continue
				}
				if err = w.onError(err); err != nil {
					errs <- err
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	group.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return ctx.Err()
	}
}

func (w *workers) once(ctx context.Context, l locker) error {
	waitCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// A library may ask many times before it is served, and each time its ttl begins anew: the last time it can
	// have asked is unknown, the first is not, so a long wait gives a short interval, never one too long.
	asked := time.Now()
	h, err := l.wait(waitCtx, w.name)
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	s := stay{from: time.Now()}
	seen := w.counter.Load()
	s.fence = w.fence(ctx)
	time.Sleep(2 * time.Millisecond)
	w.counter.Store(seen + 1)
	s.to = time.Now()
	if end := asked.Add(w.ttl); s.to.After(end) {
		s.to, s.fence = end, 0
	}
	if s.to.After(s.from) {
		w.mu.Lock()
		w.stays = append(w.stays, s)
		w.mu.Unlock()
	}
	if err := h.release(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

func (w *workers) fence(ctx context.Context) int64 {
	ctx, cancel := context.WithTimeout(ctx, w.ttl/2)
	defer cancel()
	info, err := w.trial.info(ctx, w.trial.lib.key(w.name))
	if err != nil {
		return 0
	}
	return info.fence
}

func (w *workers) stayed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.stays)
}

// judge: no two stays overlap, and the fences rise from each to the next.
func (w *workers) judge() error {
	sort.Slice(w.stays, func(i, j int) bool { return w.stays[i].from.Before(w.stays[j].from) })
	var last stay
	for _, s := range w.stays {
		if s.from.Before(last.to) {
			return fmt.Errorf("two holders at once for %v (fences %d and %d)", last.to.Sub(s.from), last.fence, s.fence)
		}
		if s.fence == 0 {
			s.fence = last.fence
		} else if s.fence <= last.fence {
			return fmt.Errorf("fence %d came after %d", s.fence, last.fence)
		}
		last = s
	}
	if last.fence == 0 {
		return fmt.Errorf("no fence could be read in %d stays", len(w.stays))
	}
	return nil
}

// exclusion: no update may be lost, and nobody may be refused for other reasons than the lock.
func exclusion(ctx context.Context, t *trial) error {
	const rounds = 30
	w := &workers{trial: t, name: t.name("exclusion"), ttl: longTTL, count: 4,
		onError: func(err error) error { return err }}
	if err := w.run(ctx, func() bool { return w.stayed() >= rounds }); err != nil {
		return err
	}
	if lost := int64(w.stayed()) - w.counter.Load(); lost != 0 {
		return fmt.Errorf("%d of %d updates were lost", lost, w.stayed())
	}
	return w.judge()
}
